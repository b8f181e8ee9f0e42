from rheobase.cli import main

main()

"""Convert a ReLU network to integrate-and-fire neurons whose firing rates represent its activations.

    graph     the ReLU network as synapses and layers, and the spiking network with the thresholds of a method
    layers    sends calibration images through the network, layer by layer
    a file for every method: data_norm, spike_norm, rmp, calibrated, qcfs
    unfold    turns a converted network into one that can be trained (hybrid training)

A spike of a layer represents its threshold: activation = threshold * rate. So the weights of synapses that read it are
multiplied by the threshold. Currents keep the units of the ReLU network, and any wiring is converted in the same way.
"""

from rheobase.convert.methods import METHODS, convert

__all__ = ["METHODS", "convert"]

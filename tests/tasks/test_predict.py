"""Single images are classified, and batches are refused."""

import pytest
import torch

from rheobase.tasks.predict import Classifier


@pytest.mark.parametrize("shape", [(5, 3, 32, 32), (2, 5, 3, 32, 32)])
def test_a_batch_is_not_answered_for_its_first_image_only(shape: tuple[int, ...]) -> None:
    classify = Classifier("cifar10-resnet19-t2", "cpu")
    with pytest.raises(ValueError, match=r"expected one image \[1, C, H, W\] or sequence \[T, 1, C, H, W\], got"):
        classify(torch.zeros(shape))

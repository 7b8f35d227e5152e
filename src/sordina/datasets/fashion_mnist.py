"""Fashion-MNIST as chapter 3 of the thesis uses it: an autoencoder's target is its own input."""

from __future__ import annotations

from torch.utils.data import TensorDataset

from sordina.datasets.data import Data, Task
from sordina.datasets.mnist import files, images_and_labels
from sordina.errors import InvalidInput
from sordina.progress import StagedProgress

_MIRRORS = (
    "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
    "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
)
_CONTENT = {
    "train-images-idx3-ubyte.gz": "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
    "train-labels-idx1-ubyte.gz": "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
    "t10k-images-idx3-ubyte.gz": "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
    "t10k-labels-idx1-ubyte.gz": "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
}

FILES = files("fashion-mnist", _CONTENT, _MIRRORS)


def load(*, task: Task | str = Task.RECONSTRUCTION, progress: StagedProgress | None = None) -> Data:
    """Fashion-MNIST; ``task`` "reconstruction" (target = image) or "classification" (target = article)."""
    if task not in (Task.RECONSTRUCTION, Task.CLASSIFICATION):
        raise InvalidInput(f"fashion-mnist serves reconstruction or classification, not {task}.")
    classify = task == Task.CLASSIFICATION
    images, labels = images_and_labels(FILES, "train", progress)
    test_images, test_labels = images_and_labels(FILES, "t10k", progress)
    return Data(
        name="fashion-mnist",
        train=TensorDataset(images, labels if classify else images),
        test=TensorDataset(test_images, test_labels if classify else test_images),
        task=Task(task),
        classes=10 if classify else 0,
        source="Fashion-MNIST (Xiao et al. 2017), complete: 60 000 + 10 000",
    )

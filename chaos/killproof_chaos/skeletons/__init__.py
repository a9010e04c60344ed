"""What `chaos init-target` writes; the queue's name is put in for `my-queue`."""

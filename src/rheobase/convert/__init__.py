"""From a ReLU network to spikes: integrate-and-fire neurons whose rates stand for activations.

    graph     the ReLU network as synapses and layers, and the spiking one with the thresholds that a method chose
    layers    calibration images on their way through it, layer by layer
    a file for every method: data_norm, spike_norm, rmp, calibrated, qcfs
    unfold    a converted network as one that can be trained (hybrid training)

A spike of a layer stands for its threshold: activation = threshold * rate. So synapses that read it are multiplied by
the threshold, currents keep the units of the ReLU network, and a network of any wiring is converted alike.
"""

from rheobase.convert.methods import METHODS, convert

__all__ = ["METHODS", "convert"]

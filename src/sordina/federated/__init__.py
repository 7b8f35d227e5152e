"""Federated learning as four independent choices, each one small protocol.

=============  ==================================================  ================================================
choice         what it decides                                     where
=============  ==================================================  ================================================
strategy       what the server makes of what was released          `strategies`: AddMean, ScaffoldServer, Ifca,
                                                                   MetricPfl (Algorithm 1), SteadyPfl
client work    what a client computes from what it is sent         `clients`: LocalGradient, LocalTraining, Scaffold,
                                                                   BestUpdate, BestModel, ClippedGradient
placement      what is done to an update, and where                `privacy`: Nothing, Central, Local, RecordNoise,
                                                                   Metric; `ClientAccount`
engine         where it runs                                       `engines`: InProcess
=============  ==================================================  ================================================

`run.federate` is the loop over rounds; `methods` has the named combinations.
"""

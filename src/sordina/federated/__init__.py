"""Federated learning as four independent choices, each one small protocol.

=============  ==================================================  ================================================
choice         what it decides                                     where
=============  ==================================================  ================================================
strategy       what the server makes of what was released          `strategies`: AddMean, ScaffoldServer, FedDynServer,
                                                                   FsvrgServer, Intersection, GraphServer, Ifca,
                                                                   MetricPfl (Algorithm 1), SteadyPfl
client work    what a client computes from what it is sent         `clients`: LocalGradient, LocalTraining, Scaffold,
                                                                   DynamicRegulariser, VarianceReduced, SubNetwork,
                                                                   NearMean, Neighbours, MetaTraining, Mixture,
                                                                   BestUpdate, BestModel, ClippedGradient
placement      what is done to an update, and where                `privacy`: Nothing, Central, Local, RecordNoise,
                                                                   Metric; `ClientAccount`; `compression` around it
engine         where it runs                                       `engines`: InProcess, Flower; Stormy around either
=============  ==================================================  ================================================

`run.federate` is the loop over rounds; `methods` has the named combinations. `guard` looks at what arrives,
`aggregation` has means that hostile clients cannot move far, `weather` what they may try.
"""

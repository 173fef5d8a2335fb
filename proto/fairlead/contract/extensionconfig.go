package contract

// KeepsExtensionConfigs is the key of a node's metadata by which node-agent tells xds-servers, with the value "true",
// that its proxy keeps an extension config until no listener names it, whatever an xds-server says. What a proxy gets
// by it, it can ask for by its extensions too: nothing is granted.
const KeepsExtensionConfigs = "FAIRLEAD_KEEPS_EXTENSION_CONFIGS"

package contract

// Labels by which namespaces and Pods ask for a sidecar, or refuse one. In these places it is decided who gets one, and
// none of them may change alone: the selectors of the injector's webhooks in charts/injector/templates/injector.yaml of
// the installer, and those of tags in its tag/selectors.go, which a test compares; inject.Config.Decide, for a Pod that
// those select; local/plan, for `fairlead up`; injected in config-watcher's analysis/whole, and package injectcheck of
// the installer, which tell people.
const (
	// InjectionLabel of a namespace is "enabled" or "disabled". It goes before RevisionLabel.
	InjectionLabel = "istio-injection"
	// RevisionLabel of a namespace or Pod names the revision or tag that is to inject. Objects of a control plane, and
	// of Istio's kinds, name by it the revision that they are of.
	RevisionLabel = "istio.io/rev"
	// InjectLabel of a Pod is "true" or "false". It is an annotation, too.
	InjectLabel = "sidecar.istio.io/inject"
)

// SystemNamespaces are Kubernetes' own; no Pod there is injected. The chart of
// the injector has them, too: webhook "auto" in services/installer/manifests/charts/injector/templates/injector.yaml.
var SystemNamespaces = []string{"kube-system", "kube-public", "kube-node-lease", "local-path-storage"}

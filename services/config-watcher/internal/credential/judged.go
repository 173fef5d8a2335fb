package credential

import (
	"slices"

	networking "istio.io/api/networking/v1alpha3"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/config-watcher/internal/object"
	"fairlead.dev/services/config-watcher/internal/resource"
)

// judgedUse is the use of credentials by listeners of the Gateway API; nil if they name none. What is not granted, or
// not there, is not in the resource.
func judgedUse(k resource.Key, listeners *configv1.GatewayListeners) *use {
	u := &use{namespace: k.Namespace, judged: listeners}
	named := []string{listeners.GetBackendCredential()}
	for _, l := range listeners.GetListeners() {
		tls := &networking.ServerTLSSettings{}
		if l.GetTls().UnmarshalTo(tls) != nil {
			continue
		}
		named = append(named, tls.GetCredentialNames()...)
		switch tls.GetMode() {
		case networking.ServerTLSSettings_MUTUAL, networking.ServerTLSSettings_OPTIONAL_MUTUAL:
			if l.GetClientAuthorities() == "" && len(tls.GetCredentialNames()) > 0 {
				named = append(named, tls.GetCredentialNames()[0]+AuthoritySuffix)
			}
		}
	}
	for _, name := range named {
		if name = WithoutScheme(name); name != "" {
			u.names = append(u.names, name)
		}
	}
	slices.Sort(u.names)
	if u.names = slices.Compact(u.names); len(u.names) == 0 {
		return nil
	}
	return u
}

// serves returns whether a Workload of a namespace serves the judged listeners.
func (u *use) serves(namespace string) func(*configv1.Workload) bool {
	return func(w *configv1.Workload) bool {
		return slices.ContainsFunc(u.judged.GetSelections(), func(s *configv1.WorkloadSelection) bool {
			return s.GetNamespace() == namespace && len(s.GetLabels()) > 0 && object.HasLabels(w.GetLabels(), s.GetLabels())
		})
	}
}

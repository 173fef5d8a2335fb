package whole

import (
	"fmt"

	networkingv1 "k8s.io/api/networking/v1"

	"fairlead.dev/services/config-watcher/internal/ingress"
)

// ingressCredentials calls do with each secretName of the Ingresses that the mesh serves, and the namespaces of the
// gateways that serve them.
func (r *run) ingressCredentials(do func(o *Object, namespaces []string, field, name string)) {
	settings, classes := r.effectiveSettings(), ingress.Classes{}
	for _, o := range r.kind("IngressClass") {
		if o.Valid != nil {
			classes.Put(o.Key.Name, o.Valid)
		}
	}
	var gateways []string
	for i, o := range r.kind("Ingress") {
		if i == 0 {
			gateways = r.namespacesOf(r.selected("", ingress.Selector(settings)))
		}
		if o.Valid == nil || ingress.Takes(settings, o.Valid, classes.Get) != ingress.Taken {
			continue
		}
		for j, t := range o.Valid.Body.(*networkingv1.Ingress).Spec.TLS {
			do(o, gateways, fmt.Sprintf("spec.tls[%d].secretName", j), t.SecretName)
		}
	}
}

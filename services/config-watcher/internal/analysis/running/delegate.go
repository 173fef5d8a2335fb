package running

import (
	"cmp"
	"fmt"

	networking "istio.io/api/networking/v1alpha3"

	"fairlead.dev/services/config-watcher/internal/analysis/finding"
	"fairlead.dev/services/config-watcher/internal/normalise"
	"fairlead.dev/services/config-watcher/internal/object"
)

// checkDelegates finds routes whose delegate does not exist, has hosts, or is not visible.
func checkDelegates(r *reader) {
	for i, in := range r.object.Body.(*networking.VirtualService).GetHttp() {
		if in.GetDelegate() == nil {
			continue
		}
		field := fmt.Sprintf("spec.http[%d].delegate", i)
		ns, name := delegateOf(in, r.namespace())
		o := r.config("VirtualService", ns, name)
		switch {
		case o == nil && !r.namespaceExists(ns):
			r.report(finding.DelegateNotFound, field, ns+"/"+name, "there is no such VirtualService; "+noNamespace(ns),
				"create it, or correct the name")
		case o == nil:
			r.report(finding.DelegateNotFound, field, ns+"/"+name, "there is no such VirtualService",
				"create it, without hosts, or correct the name")
		case len(o.Body.(*networking.VirtualService).GetHosts()) > 0:
			r.report(finding.DelegateNotFound, field, ns+"/"+name, "that VirtualService has hosts of its own and can be no delegate",
				"remove its hosts and gateways")
		case !normalise.VisibleTo(r.exported(o), r.namespace()):
			r.report(finding.DelegateNotFound, field, ns+"/"+name,
				fmt.Sprintf("that VirtualService is not exported to namespace %s, only to %s", r.namespace(), exportedText(r.exported(o))),
				"export it there")
		}
	}
}

func delegateOf(in *networking.HTTPRoute, namespace string) (ns, name string) {
	return cmp.Or(in.GetDelegate().GetNamespace(), namespace), in.GetDelegate().GetName()
}

// delegate returns the VirtualService that a route delegates to; nil if it cannot delegate.
func (r *reader) delegate(in *networking.HTTPRoute, root *object.Object) *networking.VirtualService {
	ns, name := delegateOf(in, root.Key.Namespace)
	o := r.config("VirtualService", ns, name)
	if o == nil || len(o.Body.(*networking.VirtualService).GetHosts()) > 0 || !normalise.VisibleTo(r.exported(o), root.Key.Namespace) {
		return nil
	}
	return o.Body.(*networking.VirtualService)
}

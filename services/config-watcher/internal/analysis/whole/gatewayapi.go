package whole

import (
	"cmp"
	"fmt"
	"slices"

	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"fairlead.dev/services/config-watcher/internal/analysis/gatewaystatus"
	"fairlead.dev/services/config-watcher/internal/analysis/installed"
	"fairlead.dev/services/config-watcher/internal/credential"
	"fairlead.dev/services/config-watcher/internal/gatewayapi"
	"fairlead.dev/services/config-watcher/internal/normalise"
	"fairlead.dev/services/config-watcher/internal/object"
)

// gatewayConfig is what package gatewayapi needs to know.
func (m *Mesh) gatewayConfig() gatewayapi.Config {
	return gatewayapi.Config{Domain: cmp.Or(m.cfg.Domain, "cluster.local"), MeshNamespace: m.effectiveSettings().GetRootNamespace(),
		Tenants: m.tenancy().Enabled}
}

// tenancy is that of Config.MultiTenant, or of the config-watcher among the objects.
func (m *Mesh) tenancy() normalise.Tenancy {
	return normalise.Tenancy{Domain: m.cfg.Domain, Enabled: m.cfg.MultiTenant ||
		slices.ContainsFunc(m.byLabel[label{m.RootNamespace(), "", ""}], func(w *workload) bool {
			return w.spec != nil && installed.MultiTenant(w.spec)
		})}
}

// Referenced lists the Secrets and ConfigMaps that objects of the Gateway API refer to and may read, sorted. root is
// the namespace of the ConfigMaps with the defaults of classes; "" without such objects.
func (m *Mesh) Referenced() (refs []object.Key, root string) {
	m.index()
	objects := m.gatewayObjects()
	if len(objects) == 0 {
		return nil, ""
	}
	s := gatewaystatus.State(m.gatewayConfig(), m.cfg.Now, objects)
	s.Rebuild()
	return s.Wanted(), m.gatewayConfig().MeshNamespace
}

// gatewayObjects are the objects that decide about those of the Gateway API; none if there are none of these.
func (m *Mesh) gatewayObjects() []*object.Object {
	var out []*object.Object
	some := false
	for _, o := range m.objects {
		switch k := o.Key; {
		case k == (object.Key{Kind: "Secret", Namespace: k.Namespace, Name: k.Name}):
			c, _ := o.Body.(*object.Credential)
			secret := cmp.Or(o.Valid, &object.Object{Key: k})
			out = append(out, credential.StateOf(k, secret, c).Object)
		case o.Valid == nil:
		case k.Group == groupGateway:
			some = true
			out = append(out, o.Valid)
		case k.Kind == "Service" || k.Kind == "Namespace" || k.Kind == "ConfigMap" || k.Kind == "ServiceEntry" || k.Kind == "Gateway" ||
			k.Kind == "VirtualService" || k.Kind == "AuthorizationPolicy":
			out = append(out, o.Valid)
		}
	}
	if !some {
		return nil
	}
	return out
}

// checkGatewayStatuses finds what is wrong with objects of the Gateway API.
func checkGatewayStatuses(r *run) {
	objects := r.gatewayObjects()
	if len(objects) == 0 {
		return
	}
	cfg := gatewaystatus.Config{Config: r.gatewayConfig(), Now: r.cfg.Now, Visible: func(vs *object.Object, namespace string) bool {
		return normalise.VisibleTo(normalise.ObjectExportedTo(vs, r.settings, r.tenancy()), namespace)
	}}
	for _, w := range r.workloads {
		cfg.Workloads = append(cfg.Workloads, gatewaystatus.Workload{Namespace: w.Key.Namespace, Labels: w.labels})
	}
	for _, f := range gatewaystatus.Analyze(cfg, objects) {
		r.report(r.objects[f.Key], f.Code, f.Field, nil, f.Reason, f.Remedy)
	}
}

// listenerCredentials calls do with each Secret that listeners of the Gateway API name, and its namespace.
func (r *run) listenerCredentials(do func(o *Object, namespaces []string, field, name string)) {
	listener := func(o *Object, i int, tls *gatewayv1.ListenerTLSConfig) {
		if tls == nil {
			return
		}
		for j, ref := range tls.CertificateRefs {
			namespace := o.Key.Namespace
			if ref.Namespace != nil {
				namespace = string(*ref.Namespace)
			}
			do(o, []string{namespace}, fmt.Sprintf("spec.listeners[%d].tls.certificateRefs[%d]", i, j), string(ref.Name))
		}
	}
	for _, o := range r.kind(groupGateway + "/" + gatewayapi.Gateway) {
		if o.Valid != nil {
			for i, l := range o.Valid.Body.(*gatewayv1.Gateway).Spec.Listeners {
				listener(o, i, l.TLS)
			}
		}
	}
	for _, o := range r.kind(groupGateway + "/" + gatewayapi.ListenerSet) {
		if o.Valid != nil {
			for i, l := range o.Valid.Body.(*gatewayv1.ListenerSet).Spec.Listeners {
				listener(o, i, l.TLS)
			}
		}
	}
}

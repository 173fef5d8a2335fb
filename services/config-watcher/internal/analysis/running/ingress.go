package running

import (
	"fmt"
	"slices"

	networkingv1 "k8s.io/api/networking/v1"

	"fairlead.dev/services/config-watcher/internal/analysis/finding"
	"fairlead.dev/services/config-watcher/internal/ingress"
	"fairlead.dev/services/config-watcher/internal/normalise"
	"fairlead.dev/services/config-watcher/internal/object"
)

// countIngress counts the Ingresses of the mesh. While there are some, the gateways that serve them are selected.
func (m *Mesh) countIngress(add bool) {
	if add {
		m.ingresses++
	} else {
		m.ingresses--
	}
	m.selectIngressGateways()
}

// selectIngressGateways brings the selection up to date with the mesh configuration.
func (m *Mesh) selectIngressGateways() {
	var want map[string]string
	if m.ingresses > 0 {
		want = ingress.Selector(m.settings)
	}
	if object.LabelText(want) == object.LabelText(m.ingressGateways) {
		return
	}
	if m.ingressGateways != nil {
		m.countSelector(m.ingressGateways, false)
	}
	if m.ingressGateways = want; want != nil {
		m.countSelector(want, true)
	}
}

// indexClass takes over an IngressClass, or removes it.
func (m *Mesh) indexClass(o *object.Object, add bool) {
	now := o
	if !add {
		now = nil
	}
	if m.classes.Put(o.Key.Name, now) {
		m.touch(topic{subjectIngressClass, "", ""})
	}
	m.touch(topic{subjectIngressClass, o.Key.Name, ""})
}

// ingressClass returns the IngressClass of a name, and for "" the default one; nil if there is none.
func (r *reader) ingressClass(name string) *object.Object {
	r.record(subjectIngressClass, name, "")
	return r.mesh.classes.Get(name)
}

// checkIngress finds what an Ingress of the mesh's class refers to and what is not there, and Ingresses of no class.
func checkIngress(r *reader) {
	const field = "spec.ingressClassName"
	switch ingress.Takes(r.settings(), r.object, r.ingressClass) {
	case ingress.ClassMissing:
		r.report(finding.IngressClassNotFound, field, ingress.ClassName(r.object), "there is no such IngressClass",
			"create it, or correct the name")
		return
	case ingress.Unclassed:
		r.report(finding.IngressClassNotFound, field, nil, "it names no class, and no IngressClass is the default one",
			"name a class, or mark one as the default, or set MeshConfig.ingressControllerMode to DEFAULT")
		return
	case ingress.Taken:
	default:
		return // another controller's
	}
	selector := ingress.Selector(r.settings())
	namespaces := r.selected(selector)
	if len(namespaces) == 0 {
		r.report(finding.NothingSelected, "spec", nil,
			fmt.Sprintf("no workload of the mesh has the labels %s, by which MeshConfig finds the gateways of Ingresses",
				object.LabelText(selector)),
			"start the gateway's workload, or set MeshConfig.ingressSelector to the label istio that it has")
	}
	ingress.Backends(r.object, r.checkBackend)
	for i, t := range r.object.Body.(*networkingv1.Ingress).Spec.TLS {
		for _, ns := range namespaces {
			if t.SecretName != "" {
				r.checkCredential(fmt.Sprintf("spec.tls[%d].secretName", i), t.SecretName, ns, needsKey)
			}
		}
	}
}

// checkBackend finds a backend whose Service, or port of it, does not exist.
func (r *reader) checkBackend(field string, b *networkingv1.IngressServiceBackend) {
	host := r.host(b.Name)
	services := r.services(host)
	if len(services) == 0 {
		r.report(finding.HostNotFound, field+".name", b.Name, fmt.Sprintf("there is no Service %s in namespace %s", b.Name, r.namespace()),
			"create it, or correct the name")
		return
	}
	if isAlias(services) {
		return
	}
	var has []string
	for _, o := range services {
		for _, p := range normalise.PortsOf(o) {
			if b.Port.Name != "" && p.GetName() == b.Port.Name || b.Port.Name == "" && int64(p.GetNumber()) == int64(b.Port.Number) {
				return
			}
			has = append(has, fmt.Sprintf("%d (%s)", p.GetNumber(), p.GetName()))
		}
	}
	slices.Sort(has)
	at, value := field+".port.number", any(b.Port.Number)
	if b.Port.Name != "" {
		at, value = field+".port.name", b.Port.Name
	}
	r.report(finding.PortNotFound, at, value,
		fmt.Sprintf("%s %s/%s has no such port", services[0].Key.Kind, r.namespace(), services[0].Key.Name),
		"use one of its ports: "+listed(slices.Compact(has)))
}

package gatewayapi

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"fairlead.dev/services/config-watcher/internal/object"
)

// reference is who refers: an object of a kind of the Gateway API and its namespace.
type reference struct{ kind, namespace string }

// granted reports whether who refers may refer to an object: one of its own namespace, or one that a ReferenceGrant of
// the object's namespace allows.
func (l *lookup) granted(from reference, group, kind string, to Name) bool {
	if from.namespace == to.Namespace {
		return true
	}
	l.read(grantsOf(to.Namespace))
	access := Access{from.kind, from.namespace, object.Key{Group: group, Kind: kind, Namespace: to.Namespace, Name: to.Name}}
	for _, o := range l.grants[to.Namespace] {
		spec := &o.Body.(*gatewayv1.ReferenceGrant).Spec
		if grants(spec, from, group, kind, to.Name) {
			return l.note(access, true)
		}
	}
	return l.note(access, false)
}

func grants(spec *gatewayv1.ReferenceGrantSpec, from reference, group, kind, name string) bool {
	for _, f := range spec.From {
		if f.Group != Group || string(f.Kind) != from.kind || string(f.Namespace) != from.namespace {
			continue
		}
		for _, t := range spec.To {
			if string(t.Group) == group && string(t.Kind) == kind && (t.Name == nil || *t.Name == "" || string(*t.Name) == name) {
				return true
			}
		}
	}
	return false
}

func notGranted(kind string, to Name, fromKind, fromNamespace string) string {
	return fmt.Sprintf("no ReferenceGrant of namespace %s allows %ss of namespace %s to refer to %s %s; create one there, from that kind and "+
		"namespace to the kind %s", to.Namespace, fromKind, fromNamespace, kind, to.Name, kind)
}

// authorityEntry is the entry of a ConfigMap that holds the certificates of authorities. That of Istio, cacert, will do
// as well.
const authorityEntry = "ca.crt"

// authority reads the certificates of a ConfigMap, or says why it cannot.
func (l *lookup) authority(n Name) (text, message string) {
	k := object.Key{Kind: configMap, Namespace: n.Namespace, Name: n.Name}
	l.read(k)
	o := l.objects[k]
	if o == nil {
		return "", fmt.Sprintf("there is no ConfigMap %s", n)
	}
	found, _ := o.Body.(*object.Credential)
	if m, ok := o.Body.(*corev1.ConfigMap); ok {
		found = object.AuthorityOf(m)
	}
	if text = string(found.Authority().Proto().GetCaCertificates()); text == "" {
		return "", fmt.Sprintf("ConfigMap %s has no certificates in PEM in its entry %s", n, authorityEntry)
	}
	return text, ""
}

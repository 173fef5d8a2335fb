// Package ingress turns Ingresses into Gateways and VirtualServices, as Istio does. Takes decides which Ingresses are
// the mesh's; Gateway and VirtualService convert them; Addresses is what their status shows. Package normalise calls
// them with the objects that a change touches, package running with those that it checks. All are functions of their
// arguments.
package ingress

import (
	mesh "istio.io/api/mesh/v1alpha1"
	networkingv1 "k8s.io/api/networking/v1"

	"fairlead.dev/services/config-watcher/internal/object"
)

// Controller is the name by which an IngressClass gives its Ingresses to the mesh.
const Controller = "istio.io/ingress-controller"

// Verdict says whether the mesh serves an Ingress.
type Verdict int

// Verdicts. Only Taken Ingresses are served.
const (
	// Off: MeshConfig.ingressControllerMode is OFF.
	Off Verdict = iota
	Taken
	// Foreign: its class is another controller's.
	Foreign
	// ClassMissing: it names an IngressClass that does not exist.
	ClassMissing
	// Unclassed: it names no class, and the mesh is not the cluster's default controller.
	Unclassed
)

// Takes decides whether the mesh serves an Ingress. class is Classes.Get, or looks up the same. A class by annotation
// is compared with MeshConfig.ingressClass. One by spec.ingressClassName, and the default class for an Ingress without
// either, belongs to the controller that it names. Without an IngressClass the mesh serves the Ingress in mode DEFAULT.
func Takes(settings *mesh.MeshConfig, o *object.Object, class func(name string) *object.Object) Verdict {
	if settings.GetIngressControllerMode() == mesh.MeshConfig_OFF {
		return Off
	}
	if name, ok := o.Annotations[object.IngressClassAnnotation]; ok {
		if name == settings.GetIngressClass() {
			return Taken
		}
		return Foreign
	}
	name, missing := ClassName(o), ClassMissing
	if name == "" {
		missing = Unclassed
	}
	switch c := class(name); {
	case c != nil && c.Body.(*networkingv1.IngressClass).Spec.Controller == Controller:
		return Taken
	case c != nil:
		return Foreign
	case settings.GetIngressControllerMode() == mesh.MeshConfig_DEFAULT:
		return Taken
	default:
		return missing
	}
}

// ClassName is the IngressClass that an Ingress names; "" for the default one.
func ClassName(o *object.Object) string {
	if name := o.Body.(*networkingv1.Ingress).Spec.IngressClassName; name != nil {
		return *name
	}
	return ""
}

// Classes are the IngressClasses of a mesh by name.
type Classes map[string]*object.Object

// Put takes over an IngressClass; nil removes it. It reports whether it is, or was, a default class.
func (c Classes) Put(name string, o *object.Object) (standard bool) {
	standard = isDefault(c[name]) || isDefault(o)
	if o == nil {
		delete(c, name)
	} else {
		c[name] = o
	}
	return standard
}

// Get returns the IngressClass of a name, and for "" the default one; nil if there is none. Of several default classes
// the youngest counts, as in Kubernetes.
func (c Classes) Get(name string) *object.Object {
	if name != "" {
		return c[name]
	}
	var out *object.Object
	for _, o := range c {
		if isDefault(o) && (out == nil || before(o, out)) {
			out = o
		}
	}
	return out
}

func isDefault(class *object.Object) bool {
	return class != nil && class.Annotations[object.DefaultIngressClassAnnotation] == "true"
}

func before(a, b *object.Object) bool {
	if c := a.Created.Compare(b.Created); c != 0 {
		return c > 0
	}
	return a.Key.Name < b.Key.Name
}

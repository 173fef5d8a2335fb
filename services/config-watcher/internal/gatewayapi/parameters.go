package gatewayapi

import (
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"fairlead.dev/pkg/gatewaydeploy"
	"fairlead.dev/services/config-watcher/internal/object"
)

// putConfigMap takes over a ConfigMap. In the root namespace it may have the overlays of a class.
func (s *State) putConfigMap(k object.Key, old, o *object.Object) {
	store(s.objects, k, o)
	s.graph.touch(k)
	if k.Namespace != s.cfg.MeshNamespace {
		return
	}
	for _, object := range []*object.Object{old, o} {
		if object != nil {
			s.indexDefaults(object, object == o)
		}
	}
}

// indexDefaults keeps a ConfigMap of the root namespace among the defaults of its class, or removes it.
func (s *State) indexDefaults(o *object.Object, keep bool) {
	if class := o.Labels[gatewaydeploy.DefaultsLabel]; class != "" {
		index(s.defaults, Name{Name: class}, nameOf(o.Key), o, keep)
		s.graph.touch(defaultsOf(class))
	}
}

// SetMeshNamespace has another namespace be the root namespace.
func (s *State) SetMeshNamespace(namespace string) {
	if namespace == s.cfg.MeshNamespace {
		return
	}
	for k, o := range s.objects {
		switch {
		case k.Group == "" && k.Kind == configMap && (k.Namespace == namespace || k.Namespace == s.cfg.MeshNamespace):
			s.indexDefaults(o, k.Namespace == namespace)
		case k.Group == Group && (k.Kind == Gateway || k.Kind == GatewayClass): // tenancy and messages depend on it
			s.graph.invalidate(k)
		}
	}
	s.cfg.MeshNamespace = namespace
}

// defaultsOf stands for all ConfigMaps with overlays of a class.
func defaultsOf(class string) object.Key { return object.Key{Kind: "defaults", Name: class} }

// classDefaults is the ConfigMap with the overlays of a class, the oldest; the zero Name if there is none.
func (l *lookup) classDefaults(class string) Name {
	l.read(defaultsOf(class))
	if all := sortedObjects(l.defaults[Name{Name: class}]); len(all) > 0 {
		return nameOf(all[0].Key)
	}
	return Name{}
}

// undeployable says why fairlead-gateways deploys nothing for a Gateway; "" if it does, or has nothing to do. The
// parameters of a Gateway that is not deployed, because it names a Service, have to be right all the same, as in Istio.
func (l *lookup) undeployable(g *gateway, o *object.Object) string {
	gw := &gatewayv1.Gateway{Spec: o.Body.(*gatewayv1.Gateway).Spec}
	gw.Namespace, gw.Name, gw.Labels, gw.Annotations = o.Key.Namespace, o.Key.Name, o.Labels, o.Annotations
	if !gatewaydeploy.Managed(g.controller) {
		return ""
	}
	var defaults Name
	_, err := gatewaydeploy.Parameters(gw)
	if gatewaydeploy.Wanted(gw) {
		defaults, err = l.classDefaults(string(gw.Spec.GatewayClassName)), gatewaydeploy.CheckGateway(gw)
	}
	if err != nil {
		return err.Error()
	}
	for _, n := range gatewaydeploy.ConfigMaps(gw, defaults) {
		if err := l.overlays(n); err != nil {
			return err.Error()
		}
	}
	return ""
}

// overlays says why the overlays of a ConfigMap cannot be used; nil if they can.
func (l *lookup) overlays(n Name) error {
	k := object.Key{Kind: configMap, Namespace: n.Namespace, Name: n.Name}
	l.read(k)
	o := l.objects[k]
	if o == nil {
		return gatewaydeploy.CheckConfigMap(n, nil, false)
	}
	switch b := o.Body.(type) {
	case *object.Overlays:
		if b.Refused != "" {
			return errors.New(b.Refused)
		}
		return nil
	case *corev1.ConfigMap:
		return gatewaydeploy.CheckConfigMap(n, b.Data, true)
	case *object.Credential:
		return gatewaydeploy.CheckConfigMap(n, map[string]string{authorityEntry: ""}, true)
	}
	return fmt.Errorf("ConfigMap %s is none that overlays are read from; name another", n)
}

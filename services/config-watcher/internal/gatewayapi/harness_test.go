package gatewayapi_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	yamlv3 "go.yaml.in/yaml/v3"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
	"sigs.k8s.io/yaml"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/config-watcher/internal/gatewayapi"
	"fairlead.dev/services/config-watcher/internal/object"
)

// bodies make the body of a kind; a kind that is not here has none.
var bodies = map[string]func() any{
	"GatewayClass":     func() any { return &gatewayv1.GatewayClass{} },
	"Gateway":          func() any { return &gatewayv1.Gateway{} },
	"ListenerSet":      func() any { return &gatewayv1.ListenerSet{} },
	"HTTPRoute":        func() any { return &gatewayv1.HTTPRoute{} },
	"GRPCRoute":        func() any { return &gatewayv1.GRPCRoute{} },
	"TLSRoute":         func() any { return &gatewayv1.TLSRoute{} },
	"TCPRoute":         func() any { return &gatewayv1.TCPRoute{} },
	"UDPRoute":         func() any { return &gatewayv1.UDPRoute{} },
	"BackendTLSPolicy": func() any { return &gatewayv1.BackendTLSPolicy{} },
	"ReferenceGrant":   func() any { return &gatewayv1.ReferenceGrant{} },
	"Service":          func() any { return &corev1.Service{} },
	"Namespace":        func() any { return &corev1.Namespace{} },
	"ConfigMap":        func() any { return &corev1.ConfigMap{} },
	"Secret":           func() any { return &corev1.Secret{} },
}

// parse reads objects from YAML, with the defaults that the CRDs give to weight and the like left out. A Secret becomes
// a CredentialState, whose problem is the Secret's annotation "problem".
func parse(t testing.TB, text string) []*object.Object {
	t.Helper()
	var out []*object.Object
	decoder := yamlv3.NewDecoder(strings.NewReader(text))
	for {
		var document any
		if err := decoder.Decode(&document); errors.Is(err, io.EOF) {
			return out
		} else if err != nil {
			t.Fatal(err)
		}
		if document == nil {
			continue
		}
		raw, err := yamlv3.Marshal(document)
		if err != nil {
			t.Fatal(err)
		}
		if o := decode(t, raw); o != nil {
			out = append(out, o)
		}
	}
}

func decode(t testing.TB, raw []byte) *object.Object {
	t.Helper()
	var meta struct {
		metav1.TypeMeta
		metav1.ObjectMeta `json:"metadata"`
	}
	if err := yaml.Unmarshal(raw, &meta); err != nil {
		t.Fatalf("%v in\n%s", err, raw)
	}
	make := bodies[meta.Kind]
	if make == nil {
		return nil
	}
	body := make()
	if err := yaml.Unmarshal(raw, body); err != nil {
		t.Fatalf("%v in\n%s", err, raw)
	}
	group, version, found := strings.Cut(meta.APIVersion, "/")
	if !found {
		group, version = "", meta.APIVersion
	}
	_ = version
	o := &object.Object{
		Key:        object.Key{Group: group, Kind: meta.Kind, Namespace: meta.Namespace, Name: meta.Name},
		APIVersion: meta.APIVersion, Labels: meta.Labels, Annotations: meta.Annotations, Created: meta.CreationTimestamp.Time,
		Generation: meta.Generation, Source: "test", Body: body,
	}
	if s, ok := body.(*corev1.Secret); ok {
		o.Key.Group, o.Key.Kind = "fairlead.dev", object.KindCredentialState
		state := &object.CredentialState{Problem: s.Annotations["problem"]}
		if at := s.Annotations["notAfter"]; at != "" {
			var err error
			if state.NotAfter, err = time.Parse(time.RFC3339, at); err != nil {
				t.Fatal(err)
			}
		}
		o.Body = state
	}
	return o
}

func newState() *gatewayapi.State {
	return gatewayapi.New(gatewayapi.Config{Domain: "cluster.local", MeshNamespace: "istio-system"})
}

// world is a State with what its Results have said so far.
type world struct {
	*gatewayapi.State
	resources map[object.Key]*configv1.GatewayAPIConfig
	statuses  map[object.Key]*gatewayapi.Status
}

func newWorld() *world {
	return &world{State: newState(), resources: map[object.Key]*configv1.GatewayAPIConfig{}, statuses: map[object.Key]*gatewayapi.Status{}}
}

// rebuild follows a Rebuild.
func (w *world) rebuild() gatewayapi.Result {
	r := w.Rebuild()
	for k, v := range r.Resources {
		if w.resources[k] = v; v == nil {
			delete(w.resources, k)
		}
	}
	for k, v := range r.Statuses {
		if w.statuses[k] = v; v == nil {
			delete(w.statuses, k)
		}
	}
	return r
}

// load builds a world of objects in YAML.
func load(t testing.TB, texts ...string) *world {
	t.Helper()
	w := newWorld()
	w.put(t, texts...)
	return w
}

func (w *world) put(t testing.TB, texts ...string) gatewayapi.Result {
	t.Helper()
	for _, text := range texts {
		for _, o := range parse(t, text) {
			w.Put(o.Key, o)
		}
	}
	return w.rebuild()
}

// gatewayOf writes a Gateway of namespace shop with listeners, each a YAML map, and further lines of its spec.
func gatewayOf(name, spec string, listeners ...string) string {
	out := fmt.Sprintf("\n---\napiVersion: gateway.networking.k8s.io/v1\nkind: Gateway\nmetadata: {name: %s, namespace: shop}\n"+
		"spec:\n  gatewayClassName: istio\n%s\n  listeners:\n", name, spec)
	for _, l := range listeners {
		out += "  - " + l + "\n"
	}
	return out
}

// objectOf writes an object: its spec is a YAML map.
func objectOf(kind, namespace, name, spec string) string {
	version := "gateway.networking.k8s.io/v1"
	if kind == "Service" || kind == "Secret" || kind == "ConfigMap" || kind == "Namespace" {
		version = "v1"
	}
	return fmt.Sprintf("\n---\napiVersion: %s\nkind: %s\nmetadata: {name: %s, namespace: %s, generation: 7}\nspec: %s\n", version, kind,
		name, namespace, spec)
}

// status is that of an object in lines.
func (w *world) status(kind, namespace, name string) string {
	return statusText(w.statuses[gatewayKey(kind, namespace, name)])
}

// drop removes an object.
func (w *world) drop(kind, namespace, name string) gatewayapi.Result {
	k := gatewayKey(kind, namespace, name)
	switch kind {
	case "Service", "Namespace", "ConfigMap":
		k.Group = ""
	case object.KindCredentialState:
		k.Group = "fairlead.dev"
	}
	w.Put(k, nil)
	return w.rebuild()
}

// has fails the test unless a text has all parts.
func has(t testing.TB, what, text string, parts ...string) {
	t.Helper()
	for _, p := range parts {
		if !strings.Contains(text, p) {
			t.Errorf("%s has no %q:\n%s", what, p, text)
		}
	}
}

func gatewayKey(kind, namespace, name string) object.Key {
	return object.Key{Group: gatewayapi.Group, Kind: kind, Namespace: namespace, Name: name}
}

// conditions writes conditions as "Accepted=True/Accepted ...".
func conditions(list []metav1.Condition) string {
	var b bytes.Buffer
	for i, c := range list {
		if i > 0 {
			b.WriteByte(' ')
		}
		fmt.Fprintf(&b, "%s=%s/%s", c.Type, c.Status, c.Reason)
	}
	return b.String()
}

// statusText writes a status in lines.
func statusText(s *gatewayapi.Status) string {
	if s == nil {
		return ""
	}
	var b strings.Builder
	listeners := func(list []gatewayapi.ListenerStatus) {
		for _, l := range list {
			var kinds []string
			for _, k := range l.SupportedKinds {
				kinds = append(kinds, string(k.Kind))
			}
			fmt.Fprintf(&b, "%s: %d %v served=%v %s\n", l.Name, l.AttachedRoutes, kinds, l.Served, conditions(l.Conditions))
		}
	}
	switch {
	case s.Class != nil:
		fmt.Fprintln(&b, conditions(s.Class.Conditions))
	case s.Gateway != nil:
		fmt.Fprintln(&b, conditions(s.Gateway.Conditions), "sets:", s.Gateway.AttachedListenerSets)
		listeners(s.Gateway.Listeners)
	case s.ListenerSet != nil:
		fmt.Fprintln(&b, conditions(s.ListenerSet.Conditions))
		listeners(s.ListenerSet.Listeners)
	case s.Route != nil:
		for _, p := range s.Route.Parents {
			section := ""
			if p.ParentRef.SectionName != nil {
				section = "#" + string(*p.ParentRef.SectionName)
			}
			fmt.Fprintf(&b, "%s%s: %s\n", p.ParentRef.Name, section, conditions(p.Conditions))
		}
	case s.Policy != nil:
		for _, a := range s.Policy.Ancestors {
			fmt.Fprintf(&b, "%s: %s\n", a.AncestorRef.Name, conditions(a.Conditions))
		}
	}
	return b.String()
}

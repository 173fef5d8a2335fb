package kubernetes

import (
	"encoding/json"
	"fmt"
	"reflect"
	"testing"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	istionetworking "istio.io/api/networking/v1alpha3"
	istiosecurity "istio.io/api/security/v1beta1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	kjson "k8s.io/apimachinery/pkg/util/json"
	clientscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/randfill"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/pkg/testkit/protorand"
	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/services/config-watcher/internal/kinds"
	"fairlead.dev/services/config-watcher/internal/manifest"
	"fairlead.dev/services/config-watcher/internal/object"
	"fairlead.dev/services/config-watcher/internal/validate"
)

// kindsOf are the kinds of the table that client-go decodes by type, or the others.
func kindsOf(typed bool) (out []*kind) {
	for _, desc := range kinds.All() {
		gvk := schema.GroupVersionKind{Group: desc.Group, Version: desc.Versions[0], Kind: desc.Name}
		if clientscheme.Scheme.Recognizes(gvk) == typed {
			out = append(out, &kind{desc: desc, source: "kubernetes/test", lane: laneConfig})
		}
	}
	return out
}

// randomMeta is the metadata of random objects: theirs would not be valid.
func randomMeta() metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Name: "a", Namespace: "apps", Labels: map[string]string{"app": "a"}, UID: "some-uid", ResourceVersion: "17", Generation: 3,
		Annotations:       map[string]string{"networking.istio.io/exportTo": ".", lastApplied: "{}"},
		CreationTimestamp: metav1.Unix(1_700_000_000, 0), Finalizers: []string{"example.com/f"},
		ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "kubectl"}},
	}
}

// filler fills objects of Kubernetes' types at random, with values that validation sometimes accepts.
func filler(seed int64) *randfill.Filler {
	word := []string{"", "a", "http", "10.1.2.3", "fd00::1"}
	return randfill.NewWithSeed(seed).NilChance(0.5).NumElements(1, 2).MaxDepth(8).Funcs(
		func(s *string, c randfill.Continue) { *s = word[c.Intn(len(word))] },
		func(n *int32, c randfill.Continue) { *n = int32(c.Intn(9) * 80) },
		func(v *intstr.IntOrString, c randfill.Continue) { *v = intstr.FromInt32(int32(c.Intn(2) * 80)) },
		func(q *resource.Quantity, _ randfill.Continue) { *q = resource.MustParse("1") },
		func(t *metav1.Time, _ randfill.Continue) { *t = metav1.Unix(1_700_000_000, 0) },
		func(t *metav1.MicroTime, _ randfill.Continue) {
			*t = metav1.NewMicroTime(metav1.Unix(1_700_000_000, 0).Time)
		},
		func(m *metav1.ObjectMeta, _ randfill.Continue) { *m = metav1.ObjectMeta{} },
		func(p *corev1.Protocol, _ randfill.Continue) { *p = corev1.ProtocolTCP },
		func(a *discoveryv1.AddressType, _ randfill.Continue) { *a = discoveryv1.AddressTypeIPv4 },
		func(e *discoveryv1.Endpoint, c randfill.Continue) {
			c.FillNoCustom(e)
			e.Addresses = []string{"10.1.2.3"}
		},
		func(s *corev1.PodStatus, c randfill.Continue) {
			c.FillNoCustom(s)
			s.PodIP, s.PodIPs = word[3:][c.Intn(2)], []corev1.PodIP{{IP: "10.1.2.3"}, {IP: "fd00::1"}}[:c.Intn(3)]
		},
		func(f *corev1.IPFamily, _ randfill.Continue) { *f = corev1.IPv4Protocol },
		func(s *corev1.ServiceSpec, c randfill.Continue) {
			c.FillNoCustom(s)
			s.Type, s.ClusterIP, s.TrafficDistribution = corev1.ServiceTypeClusterIP, word[3:][c.Intn(2)], nil
			s.ClusterIPs, s.IPFamilies, s.Selector = nil, nil, map[string]string{"app": "a"}
		},
		func(p *networkingv1.HTTPIngressPath, c randfill.Continue) {
			c.FillNoCustom(p)
			kind := []networkingv1.PathType{networkingv1.PathTypeExact, networkingv1.PathTypePrefix,
				networkingv1.PathTypeImplementationSpecific}[c.Intn(3)]
			p.PathType, p.Path = &kind, []string{"/", "/a", "/a/"}[c.Intn(3)]
		},
		func(b *networkingv1.IngressBackend, c randfill.Continue) {
			b.Service = &networkingv1.IngressServiceBackend{Name: "a", Port: networkingv1.ServiceBackendPort{Name: word[1:3][c.Intn(2)]}}
			if c.Intn(8) == 0 {
				b.Service.Port.Number = 80
			}
		},
		func(s *networkingv1.IngressClassSpec, c randfill.Continue) {
			c.FillNoCustom(s)
			s.Controller = []string{"istio.io/ingress-controller", "example.com/a", ""}[c.Intn(3)]
		},
	)
}

// TestTypedObjectsAreThoseOfTheirManifests: the fast way of the kinds that client-go knows gives the same verdicts and
// objects as the decoding of files, and what is saved of an object makes the same object again.
func TestTypedObjectsAreThoseOfTheirManifests(t *testing.T) {
	for _, k := range kindsOf(true) {
		t.Run(k.desc.Name, func(t *testing.T) {
			const objects = 300
			accepted := 0
			for seed := range int64(objects) {
				gvk := schema.GroupVersionKind{Group: k.desc.Group, Version: k.desc.Versions[0], Kind: k.desc.Name}
				typed, err := clientscheme.Scheme.New(gvk)
				if err != nil {
					t.Fatal(err)
				}
				filler(seed).Fill(typed)
				meta := randomMeta()
				if k.desc.ClusterScoped {
					meta.Namespace = ""
				}
				if m, ok := typed.(*corev1.ConfigMap); ok && seed%2 == 0 {
					meta.Namespace, meta.Name, m.Data = kinds.MeshNamespace, kinds.MeshName, map[string]string{"mesh": "connectTimeout: 3s"}
				}
				reflect.ValueOf(typed).Elem().FieldByName("ObjectMeta").Set(reflect.ValueOf(meta))
				text, err := json.Marshal(typed)
				if err != nil {
					t.Fatal(err)
				}
				// What differs only in memory, such as empty and missing lists, is the same to an API server.
				if typed, err = clientscheme.Scheme.New(gvk); err == nil {
					err = json.Unmarshal(text, typed)
				}
				if err != nil {
					t.Fatal(err)
				}
				e, err := k.convert(typed)
				if err != nil {
					t.Fatal(err)
				}
				// The manifest is that of the trimmed object, which convert has changed.
				typed.GetObjectKind().SetGroupVersionKind(gvk)
				if text, err = json.Marshal(typed); err != nil {
					t.Fatal(err)
				}
				doc := &manifest.Document{}
				if err := kjson.Unmarshal(text, &doc.Tree); err != nil {
					t.Fatal(err)
				}
				want, wantErr := validate.Document(doc)
				if wantErr != nil {
					if e.object != nil || e.problems.Error() != wantErr.Error() {
						t.Fatalf("a typed %s gives %v, its manifest %v", text, e.problems, wantErr)
					}
					continue
				}
				accepted++
				same(t, e.object, want)
				saved, err := manifestOf(e.object)
				if err != nil {
					t.Fatal(err)
				}
				again, err := objectOf(saved)
				if err != nil {
					t.Fatalf("%s: %v", saved, err)
				}
				same(t, again, e.object)
				if again.UID != e.object.UID {
					t.Fatalf("UID %q, want %q", again.UID, e.object.UID)
				}
			}
			t.Logf("%d of %d accepted", accepted, objects)
			if accepted < objects/10 {
				t.Errorf("only %d of %d were accepted", accepted, objects)
			}
		})
	}
}

// same compares what the mesh reads of two objects.
func same(t *testing.T, got, want *object.Object) {
	t.Helper()
	show := func(o *object.Object) string {
		body, err := json.Marshal(o.Body)
		if err != nil {
			t.Fatal(err)
		}
		if c, ok := o.Body.(*object.Credential); ok {
			body = []byte(c.Version())
		}
		var tree any
		if m, ok := o.Body.(metav1.Object); ok {
			// Type and metadata are read of the object, not of its body.
			if err := json.Unmarshal(body, &tree); err != nil {
				t.Fatal(err)
			}
			delete(tree.(map[string]any), "metadata")
			delete(tree.(map[string]any), "kind")
			delete(tree.(map[string]any), "apiVersion")
			if body, err = json.Marshal(tree); err != nil {
				t.Fatal(m, err)
			}
		}
		return fmt.Sprintf("%s %s %v %v %v %d %T %s %v", o.Key, o.APIVersion, o.Labels, o.Annotations, o.Created.Unix(), o.Generation, o.Body,
			body, o.Warnings)
	}
	if a, b := show(got), show(want); a != b {
		t.Fatalf("got\n%s, want\n%s", a, b)
	}
}

// TestSavedMeshObjectsAreRestored: what is saved of an object of Istio's kinds makes an equal object.
func TestSavedMeshObjectsAreRestored(t *testing.T) {
	for kindName, spec := range map[string]func() proto.Message{
		"VirtualService":        func() proto.Message { return &istionetworking.VirtualService{} },
		"DestinationRule":       func() proto.Message { return &istionetworking.DestinationRule{} },
		"Gateway":               func() proto.Message { return &istionetworking.Gateway{} },
		"ServiceEntry":          func() proto.Message { return &istionetworking.ServiceEntry{} },
		"Sidecar":               func() proto.Message { return &istionetworking.Sidecar{} },
		"PeerAuthentication":    func() proto.Message { return &istiosecurity.PeerAuthentication{} },
		"AuthorizationPolicy":   func() proto.Message { return &istiosecurity.AuthorizationPolicy{} },
		"RequestAuthentication": func() proto.Message { return &istiosecurity.RequestAuthentication{} },
	} {
		t.Run(kindName, func(t *testing.T) {
			k, restored := kindNamed(t, kindName), 0
			for seed := range uint64(500) {
				message := spec()
				protorand.Istio.FillSeeded(seed, message)
				text, err := protojson.Marshal(message)
				if err != nil {
					continue // text that is no UTF-8
				}
				tree := map[string]any{}
				if err := kjson.Unmarshal(text, &tree); err != nil {
					t.Fatal(err)
				}
				meta := randomMeta()
				metaTree, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&meta)
				if err != nil {
					t.Fatal(err)
				}
				e, err := k.convert(&unstructured.Unstructured{Object: map[string]any{
					"apiVersion": kinds.Canonical(k.desc.Group, kindName), "kind": kindName, "metadata": metaTree, "spec": tree,
					"status": map[string]any{"x": "y"},
				}})
				if err != nil {
					t.Fatal(err)
				}
				if e.object == nil {
					continue
				}
				restored++
				if e.object.UID != "some-uid" || e.version != "17" || e.object.Annotations[lastApplied] != "" || e.object.Generation != 3 {
					t.Fatalf("%+v of version %s", e.object, e.version)
				}
				saved, err := manifestOf(e.object)
				if err != nil {
					t.Fatal(err)
				}
				again, err := objectOf(saved)
				if err != nil {
					t.Fatalf("%s: %v", saved, err)
				}
				if !proto.Equal(again.Body.(proto.Message), e.object.Body.(proto.Message)) || again.UID != "some-uid" || again.Generation != 3 {
					t.Fatalf("%s\nis restored as %v, was %v", saved, again.Body, e.object.Body)
				}
			}
			t.Logf("%d were accepted and restored", restored)
			if restored < 10 {
				t.Errorf("only %d were accepted", restored)
			}
		})
	}
}

func kindNamed(t *testing.T, name string) *kind {
	t.Helper()
	for _, k := range kindsOf(false) {
		if k.desc.Name == name {
			return k
		}
	}
	t.Fatalf("no kind %s", name)
	return nil
}

func TestSavedCredentialsAndBansAreRestored(t *testing.T) {
	ca := testkit.PKI(t)
	chain, key := ca.NewServer("a.example")
	for name, k := range map[string]struct {
		kind *kind
		o    runtime.Object
	}{
		"key pair": {&kind{desc: kinds.Kind{Name: "Secret"}},
			&corev1.Secret{ObjectMeta: randomMeta(), Data: map[string][]byte{"cert": chain, "key": key, "cacert": ca.RootPEM}}},
		"no credential": {&kind{desc: kinds.Kind{Name: "Secret"}},
			&corev1.Secret{ObjectMeta: randomMeta(), Data: map[string][]byte{"password": []byte("x")}}},
		"authority": {&kind{desc: kinds.Kind{Name: "ConfigMap"}},
			&corev1.ConfigMap{ObjectMeta: randomMeta(), Data: map[string]string{"ca.crt": string(ca.RootPEM)}}},
		"ban": {&kind{desc: kinds.Kind{Group: kinds.GroupFairlead, Name: "IdentityBan"}}, &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "fairlead.dev/v1", "kind": "IdentityBan", "metadata": map[string]any{"name": "a"},
			"spec": map[string]any{"identity": "spiffe://cluster.local/ns/apps/sa/a", "reason": "why", "until": "2030-01-01T00:00:00Z"},
		}}},
	} {
		t.Run(name, func(t *testing.T) {
			e, err := k.kind.convert(k.o)
			if err != nil || e.object == nil {
				t.Fatalf("%+v %v", e, err)
			}
			saved, err := manifestOf(e.object)
			if err != nil {
				t.Fatal(err)
			}
			again, err := objectOf(saved)
			if err != nil {
				t.Fatalf("%s: %v", saved, err)
			}
			same(t, again, e.object)
		})
	}
}

// TestRevisions: which objects a control plane of a revision reads, as in Istio.
func TestRevisions(t *testing.T) {
	for _, c := range []struct {
		revision, label string
		labelled, reads bool
	}{
		{"", "", false, true},
		{"", "canary", true, true},
		{"canary", "", false, true},
		{"canary", "canary", true, true},
		{"canary", "stable", true, false},
		{"canary", "", true, false},
	} {
		labels := map[string]string{"app": "a"}
		if c.labelled {
			labels[contract.RevisionLabel] = c.label
		}
		k := kindNamed(t, "VirtualService")
		k.revision = c.revision
		if got := !k.foreign(labels); got != c.reads {
			t.Errorf("%+v: reads %v", c, got)
		}
		service := &kind{desc: kinds.Kind{Name: "Service"}, revision: c.revision}
		if service.foreign(labels) {
			t.Errorf("%+v: a Service is left out", c)
		}
	}
}

// A status says, and decides nothing: whoever may write statuses of Istio's kinds changes no traffic by that.
func TestForgedStatusesDecideNothing(t *testing.T) {
	for kind, spec := range map[string]map[string]any{
		"WorkloadEntry": {"address": "192.0.2.1", "labels": map[string]any{"app": "a"}},
		"VirtualService": {"hosts": []any{"a"},
			"http": []any{map[string]any{"route": []any{map[string]any{"destination": map[string]any{"host": "a"}}}}}},
		"ServiceEntry": {"hosts": []any{"a.example.com"},
			"ports": []any{map[string]any{"number": int64(80), "name": "http", "protocol": "HTTP"}}, "resolution": "DNS"},
	} {
		k := kindNamed(t, kind)
		convert := func(status any) *object.Object {
			t.Helper()
			u := &unstructured.Unstructured{Object: map[string]any{
				"apiVersion": "networking.istio.io/v1", "kind": kind, "metadata": map[string]any{"namespace": "a", "name": "a"},
				"spec": runtime.DeepCopyJSON(spec),
			}}
			if status != nil {
				u.Object["status"] = status
			}
			e, err := k.convert(u)
			if err != nil || e.object == nil {
				t.Fatalf("%s with status %v: %v %v", kind, status, err, e.problems)
			}
			return e.object
		}
		want := convert(nil)
		for _, forged := range []any{
			map[string]any{"conditions": []any{map[string]any{"type": "Healthy", "status": "False"},
				map[string]any{"type": "Accepted", "status": "True"}}},
			map[string]any{"addresses": []any{map[string]any{"value": "192.0.2.66", "host": "a.example.com"}}, "observedGeneration": int64(99)},
			map[string]any{"spec": map[string]any{"hosts": []any{"victim"}}}, "a text", []any{int64(1)},
		} {
			same(t, convert(forged), want)
		}
	}
}

// TestWrittenStatusesAreNotDecoded: an event that changes nothing which the mesh reads gives the delivered object
// again; any other is decoded.
func TestWrittenStatusesAreNotDecoded(t *testing.T) {
	k := kindNamed(t, "VirtualService")
	k.objects = map[types.NamespacedName]*object.Object{}
	event := func(change func(*unstructured.Unstructured)) *unstructured.Unstructured {
		u := &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "networking.istio.io/v1", "kind": "VirtualService", "metadata": map[string]any{
				"namespace": "a", "name": "a", "uid": "u1", "generation": int64(1), "resourceVersion": "9", "labels": map[string]any{"app": "a"},
				"annotations": map[string]any{lastApplied: "{}", "note": "n"},
			},
			"spec": map[string]any{"hosts": []any{"a"},
				"http": []any{map[string]any{"route": []any{map[string]any{"destination": map[string]any{"host": "a"}}}}}},
		}}
		change(u)
		return u
	}
	s := &Source{}
	first := testkit.Must(k.convert(event(func(*unstructured.Unstructured) {})))(t)
	if s.unchanged(k, event(func(*unstructured.Unstructured) {})) != nil {
		t.Error("an object that was not delivered is known")
	}
	k.objects[first.name] = first.object
	for name, c := range map[string]struct {
		change func(*unstructured.Unstructured)
		same   bool
	}{
		"its status": {func(u *unstructured.Unstructured) {
			u.Object["status"] = map[string]any{"observedGeneration": int64(1)}
		}, true},
		"what kubectl has applied": {func(u *unstructured.Unstructured) {
			u.SetAnnotations(map[string]string{lastApplied: "{...}", "note": "n"})
		}, true},
		"its generation":            {func(u *unstructured.Unstructured) { u.SetGeneration(2) }, false},
		"without a generation":      {func(u *unstructured.Unstructured) { u.SetGeneration(0) }, false},
		"a label":                   {func(u *unstructured.Unstructured) { u.SetLabels(map[string]string{"app": "b"}) }, false},
		"an annotation":             {func(u *unstructured.Unstructured) { u.SetAnnotations(map[string]string{"note": "m"}) }, false},
		"another one of its name":   {func(u *unstructured.Unstructured) { u.SetUID("u2") }, false},
		"one that is being deleted": {func(u *unstructured.Unstructured) { u.SetDeletionTimestamp(new(metav1.Now())) }, false},
	} {
		e := s.unchanged(k, event(c.change))
		if (e != nil) != c.same {
			t.Errorf("%s: known %v", name, e != nil)
		}
		if e != nil && (e.object != first.object || e.version != "9") {
			t.Errorf("%s: %+v", name, e)
		}
	}
	first.object.Held = true
	if s.unchanged(k, event(func(*unstructured.Unstructured) {})) != nil {
		t.Error("an object that replaces a broken one is known")
	}
}

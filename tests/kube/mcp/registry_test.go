package mcp

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	networking "istio.io/api/networking/v1alpha3"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"fairlead.dev/pkg/testkit"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
)

// service makes a Service of west without a selector.
func (r *rig) service(name string, headless bool, ports ...corev1.ServicePort) {
	r.t.Helper()
	s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: west}, Spec: corev1.ServiceSpec{Ports: ports}}
	// Whoever may write a Service there must not say which names servers may have here.
	s.Annotations = map[string]string{"alpha.istio.io/kubernetes-serviceaccounts": "thief",
		"alpha.istio.io/canonical-serviceaccounts": "thief"}
	if headless {
		s.Spec.ClusterIP = corev1.ClusterIPNone
	}
	_, err := r.api.Client(r.t).CoreV1().Services(west).Create(r.t.Context(), s, metav1.CreateOptions{})
	testkit.NoError(r.t, err)
}

// at is one endpoint of a slice.
type at struct {
	address string
	ready   bool
	pod     string
}

// slice writes the EndpointSlice of a Service.
func (r *rig) slice(service string, ports map[string]int32, endpoints ...at) {
	r.t.Helper()
	s := &discoveryv1.EndpointSlice{AddressType: discoveryv1.AddressTypeIPv4, ObjectMeta: metav1.ObjectMeta{Name: service, Namespace: west,
		Labels: map[string]string{discoveryv1.LabelServiceName: service}}}
	for _, name := range slices.Sorted(maps.Keys(ports)) {
		s.Ports = append(s.Ports, discoveryv1.EndpointPort{Name: &name, Port: new(ports[name])})
	}
	for _, e := range endpoints {
		next := discoveryv1.Endpoint{Addresses: []string{e.address},
			Conditions: discoveryv1.EndpointConditions{Ready: &e.ready, Serving: &e.ready}}
		if e.pod != "" {
			next.TargetRef = &corev1.ObjectReference{Kind: "Pod", Name: e.pod, Namespace: west}
		}
		s.Endpoints = append(s.Endpoints, next)
	}
	client := r.api.Client(r.t).DiscoveryV1().EndpointSlices(west)
	_, err := client.Update(r.t.Context(), s, metav1.UpdateOptions{})
	if err != nil {
		_, err = client.Create(r.t.Context(), s, metav1.CreateOptions{})
	}
	testkit.NoError(r.t, err)
}

// pod makes a running Pod with a sidecar.
func (r *rig) pod(name, address string) {
	r.t.Helper()
	client := r.api.Client(r.t).CoreV1().Pods(west)
	p, err := client.Create(r.t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"app": name, "security.istio.io/tlsMode": "istio"}},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "app", Image: "app"}}, ServiceAccountName: "default"},
	}, metav1.CreateOptions{})
	testkit.NoError(r.t, err)
	p.Status = corev1.PodStatus{Phase: corev1.PodRunning, PodIP: address, PodIPs: []corev1.PodIP{{IP: address}},
		Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}}
	_, err = client.UpdateStatus(r.t.Context(), p, metav1.UpdateOptions{})
	testkit.NoError(r.t, err)
}

// synthetic waits until config-watcher has these endpoints of istiod's services: "host: address port=number ...".
func (r *rig) synthetic(want ...string) {
	r.t.Helper()
	testkit.Eventually(r.t, testkit.Patience, func() error {
		list, err := r.store.List(r.t.Context(), &configv1.ListRequest{Kind: "ServiceEntry", InForce: true})
		if err != nil {
			return err
		}
		var got []string
		for _, o := range list.Objects {
			if o.Key.Namespace != west {
				continue
			}
			var m struct{ Spec json.RawMessage }
			if err := json.Unmarshal(o.Manifest, &m); err != nil {
				return err
			}
			se := &networking.ServiceEntry{}
			if err := json.Unmarshal(m.Spec, se); err != nil {
				return err
			}
			text := se.Hosts[0] + ":"
			for _, e := range se.Endpoints {
				text += " " + e.Address
				for _, p := range slices.Sorted(maps.Keys(e.Ports)) {
					text += fmt.Sprintf(" %s=%d", p, e.Ports[p])
				}
				if e.Labels["security.istio.io/tlsMode"] != "" {
					text += " mesh"
				}
				if e.ServiceAccount != "" {
					text += " account"
				}
			}
			if len(se.SubjectAltNames) > 0 {
				text += fmt.Sprintf(" names %v", se.SubjectAltNames)
			}
			got = append(got, text)
		}
		if !slices.Equal(got, want) {
			return fmt.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
		return nil
	})
}

// TestEndpointsOfAnIstiodsServices: with SERVICE_REGISTRY, the Services that an istiod reads from its API server come
// with their endpoints, and follow them; headless ones stay out. Nothing that is written there is an identity here.
func TestEndpointsOfAnIstiodsServices(t *testing.T) {
	r := newRig(t)
	r.startWatcher()
	port := func(name string, number int32) corev1.ServicePort {
		return corev1.ServicePort{Name: name, Port: number, TargetPort: intstr.FromString(name)}
	}
	r.service("web", false, port("http", 80), port("tcp-admin", 9000))
	r.service("none", false, port("http", 80))
	r.service("headless", true, port("http", 80))
	r.pod("web-1", "10.1.0.1")
	both := map[string]int32{"http": 8080, "tcp-admin": 9001}
	one, two := at{address: "10.1.0.1", ready: true, pod: "web-1"}, at{address: "10.1.0.2", ready: true}
	r.slice("web", both, one, two)
	r.slice("headless", map[string]int32{"http": 8080}, one)
	r.startIstiod()
	r.follow(", subscribedResources: [SERVICE_REGISTRY]")
	const none = "none.west.svc.cluster.local:"
	const first = " 10.1.0.1 http=8080 tcp-admin=9001 mesh"
	r.synthetic(none, "web.west.svc.cluster.local:"+first+" 10.1.0.2 http=8080 tcp-admin=9001")
	// Health.
	two.ready = false
	r.slice("web", both, one, two)
	r.synthetic(none, "web.west.svc.cluster.local:"+first)
	two.ready = true
	r.slice("web", both, one, two, at{address: "10.1.0.3", ready: true})
	r.slice("none", map[string]int32{"http": 8081}, two)
	all := []string{none + " 10.1.0.2 http=8081",
		"web.west.svc.cluster.local:" + first + " 10.1.0.2 http=8080 tcp-admin=9001 10.1.0.3 http=8080 tcp-admin=9001"}
	r.synthetic(all...)
	// While istiod is away nothing goes, and neither when it starts anew.
	r.istiod.Kill()
	r.synthetic(all...)
	r.startIstiod()
	r.slice("none", map[string]int32{"http": 8082}, two)
	all[0] = none + " 10.1.0.2 http=8082"
	r.synthetic(all...)
	// Removal: an endpoint, a Service, all of it.
	r.slice("web", both, one)
	r.synthetic(all[0], "web.west.svc.cluster.local:"+first)
	testkit.NoError(t, r.api.Client(t).CoreV1().Services(west).Delete(t.Context(), "none", metav1.DeleteOptions{}))
	r.nudge()
	r.synthetic("web.west.svc.cluster.local:" + first)
	r.follow()
	r.synthetic()
}

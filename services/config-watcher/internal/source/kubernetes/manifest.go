package kubernetes

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fairlead.dev/services/config-watcher/internal/object"
)

// manifestOf writes what is kept of an object as a manifest in JSON, from which validate.Document makes the object
// again.
func manifestOf(o *object.Object) ([]byte, error) {
	tree := map[string]any{}
	switch b := o.Body.(type) {
	case nil:
	case proto.Message:
		tree["spec"] = b // Istio's types encode themselves
	case *object.Ban:
		spec := map[string]any{"identity": b.Identity, "reason": b.Reason}
		if !b.Until.IsZero() {
			spec["until"] = b.Until.UTC().Format(time.RFC3339)
		}
		tree["spec"] = spec
	case *object.Pod:
		pod := podOf(b)
		tree["spec"], tree["status"] = pod.Spec, pod.Status
	case *object.Node:
		var node corev1.Node
		for _, ip := range b.ExternalIPs {
			node.Status.Addresses = append(node.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeExternalIP, Address: ip})
		}
		tree["status"] = node.Status
	case *object.Credential:
		tree["data"] = entriesOf(o.Key.Kind, b)
	case *object.Overlays:
		if data := b.Saved(); data != nil {
			tree["data"] = data
		}
	case metav1.Object: // a Kubernetes type
		js, err := json.Marshal(b)
		if err != nil {
			return nil, err
		}
		if err := json.Unmarshal(js, &tree); err != nil {
			return nil, err
		}
	default:
		return nil, fmt.Errorf("%T cannot be saved", b)
	}
	meta := map[string]any{"name": o.Key.Name}
	tree["apiVersion"], tree["kind"], tree["metadata"] = o.APIVersion, o.Key.Kind, meta
	set := func(name, value string) {
		if value != "" {
			meta[name] = value
		}
	}
	set("namespace", o.Key.Namespace)
	set("uid", o.UID)
	if len(o.Labels) > 0 {
		meta["labels"] = o.Labels
	}
	if len(o.Annotations) > 0 {
		meta["annotations"] = o.Annotations
	}
	if o.Generation != 0 {
		meta["generation"] = o.Generation
	}
	if !o.Created.IsZero() {
		meta["creationTimestamp"] = o.Created.UTC().Format(time.RFC3339)
	}
	if p, ok := o.Body.(*object.Pod); ok && p.Ending {
		meta["deletionTimestamp"] = o.Created.UTC().Format(time.RFC3339) // any time says that it ends
	}
	return json.Marshal(tree)
}

// podOf reverses object.PodOf.
func podOf(p *object.Pod) *corev1.Pod {
	out := &corev1.Pod{
		Spec: corev1.PodSpec{
			ServiceAccountName: p.ServiceAccount, NodeName: p.Node, Hostname: p.Hostname, Subdomain: p.Subdomain,
			InitContainers: []corev1.Container{{}}, Containers: []corev1.Container{}, // the ports of both count
		},
		Status: corev1.PodStatus{Phase: corev1.PodRunning},
	}
	if p.Ended {
		out.Status.Phase = corev1.PodSucceeded
	}
	if p.Ready {
		out.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	}
	if len(p.Addresses) > 0 {
		out.Status.PodIP = p.Addresses[0]
	}
	for _, a := range p.Addresses {
		out.Status.PodIPs = append(out.Status.PodIPs, corev1.PodIP{IP: a})
	}
	for _, name := range slices.Sorted(maps.Keys(p.Ports)) {
		out.Spec.InitContainers[0].Ports = append(out.Spec.InitContainers[0].Ports,
			corev1.ContainerPort{Name: name, ContainerPort: int32(p.Ports[name])})
	}
	return out
}

// entriesOf are the entries of a Secret or ConfigMap that make the credential.
func entriesOf(kind string, c *object.Credential) map[string]any {
	p, out := c.Proto(), map[string]any{}
	for name, value := range map[string][]byte{
		corev1.TLSCertKey: p.GetCertificateChain(), corev1.TLSPrivateKeyKey: p.GetPrivateKey(), "ca.crt": p.GetCaCertificates(),
		"ca.crl": p.GetCrl(),
	} {
		switch {
		case len(value) == 0:
		case kind == kindConfigMap:
			out[name] = string(value)
		default:
			out[name] = value // JSON has it in base64
		}
	}
	return out
}

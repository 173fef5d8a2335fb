package harness

import (
	"context"
	"maps"
	"slices"
	"strings"

	"fairlead.dev/tests/scenarios/internal/document"
	"fairlead.dev/tests/scenarios/internal/format"
)

// cluster is the id of the only one.
const cluster = "Kubernetes"

// Labels that say something to the mesh.
const (
	labelNetwork = "topology.istio.io/network"
	labelTLSMode = "security.istio.io/tlsMode"
	labelRegion  = "topology.kubernetes.io/region"
	labelZone    = "topology.kubernetes.io/zone"
	labelSubzone = "topology.istio.io/subzone"
)

// writeObjects applies what the topology itself consists of, all Pods not ready yet.
func (h *Harness) writeObjects(ctx context.Context) error {
	var docs []string
	add := func(o document.Tree) { docs = append(docs, document.Encode(o)) }
	add(h.mesh.object())
	for _, name := range slices.Sorted(maps.Keys(h.topology.Namespaces)) {
		add(document.WithLabels(document.Object("Namespace", "", name, nil), h.topology.Namespaces[name]))
	}
	nodes := map[string]bool{}
	for _, l := range h.order {
		if name := l.node(); !nodes[name] {
			nodes[name] = true
			add(document.WithLabels(document.Object("Node", "", name, nil), l.locality()))
		}
	}
	for _, l := range h.order {
		if l.spec.Started() {
			l.shown = true
			add(l.pod(false))
		}
	}
	_, err := h.store.Apply(ctx, strings.Join(append(docs, h.serviceDocuments()...), "\n---\n"))
	return err
}

// services makes the Services of the workloads.
func (h *Harness) services() []document.Tree {
	var out []document.Tree
	made := map[string][]any{}
	for _, l := range h.order {
		name := l.spec.Service
		if name == format.NoService {
			continue
		}
		key := document.Ref("Service", l.spec.Namespace, name)
		if _, ok := made[key]; !ok {
			spec := document.Tree{"selector": document.Tree{"app": l.spec.Labels["app"]}}
			if l.spec.Headless {
				spec["clusterIP"] = "None"
			}
			out = append(out, document.Object("Service", l.spec.Namespace, name, document.Tree{"spec": spec}))
		}
		for _, p := range l.spec.Ports {
			if !slices.ContainsFunc(made[key], func(have any) bool { return have.(document.Tree)["name"] == p.Name }) {
				port := document.Tree{"name": p.Name, "port": p.Port, "targetPort": p.TargetPort, "protocol": "TCP"}
				if p.App == format.AppUDP {
					port["protocol"] = "UDP"
				}
				if p.AppProtocol != "" {
					port["appProtocol"] = p.AppProtocol
				}
				made[key] = append(made[key], port)
			}
		}
		if made[key] == nil {
			made[key] = []any{}
		}
	}
	for _, s := range out {
		meta := s["metadata"].(document.Tree)
		s["spec"].(document.Tree)["ports"] = made[document.Ref("Service", meta["namespace"].(string), meta["name"].(string))]
	}
	return out
}

// labels are those of the Pod.
func (l *workload) labels() map[string]string {
	labels := maps.Clone(l.spec.Labels)
	if l.spec.Network != "" {
		labels[labelNetwork] = l.spec.Network
	}
	// As Istio's injection has it: of gRPC programs, their authors say whether they take mTLS.
	if l.spec.Kind == format.Sidecar {
		if _, said := labels[labelTLSMode]; !said {
			labels[labelTLSMode] = "istio"
		}
	}
	return labels
}

// node is the name of the node that the Pod is on: one per locality, and one for Pods that have none.
func (l *workload) node() string {
	if l.spec.Locality == "" {
		return "node"
	}
	return "node-" + strings.ReplaceAll(l.spec.Locality, "/", "-")
}

// locality are the labels of the node.
func (l *workload) locality() map[string]string {
	labels := map[string]string{}
	if l.spec.Locality == "" {
		return labels
	}
	for i, part := range strings.SplitN(l.spec.Locality, "/", 3) {
		labels[[]string{labelRegion, labelZone, labelSubzone}[i]] = part
	}
	return labels
}

// pod is the workload's Pod object.
func (l *workload) pod(ready bool) document.Tree {
	var ports []any
	for _, p := range l.spec.Ports {
		ports = append(ports, document.Tree{"name": p.Name, "containerPort": p.TargetPort})
	}
	spec := document.Tree{"serviceAccountName": l.spec.ServiceAccount, "nodeName": l.node(),
		"containers": []any{document.Tree{"name": "app", "image": "app", "ports": ports}}}
	if l.spec.Headless {
		spec["hostname"], spec["subdomain"] = l.spec.Name, l.spec.Service
	}
	var ips []any
	for _, ip := range l.addresses() {
		ips = append(ips, document.Tree{"ip": ip})
	}
	condition := document.Tree{"type": "Ready", "status": "False"}
	if ready {
		condition["status"] = "True"
	}
	o := document.Object("Pod", l.spec.Namespace, l.spec.Name, document.Tree{
		"spec":   spec,
		"status": document.Tree{"phase": "Running", "podIP": l.host.IP.String(), "podIPs": ips, "conditions": []any{condition}},
	})
	document.WithLabels(o, l.labels())
	if len(l.spec.Annotations) > 0 {
		o["metadata"].(document.Tree)["annotations"] = document.Texts(l.spec.Annotations)
	}
	return o
}

// showPods writes the Pods of workloads as they are now.
func (h *Harness) showPods(ctx context.Context, workloads ...*workload) error {
	var docs []string
	for _, l := range workloads {
		if ready := l.running(); !l.shown || ready != l.ready {
			l.shown, l.ready = true, ready
			docs = append(docs, document.Encode(l.pod(ready)))
		}
	}
	if len(docs) == 0 {
		return nil
	}
	_, err := h.store.Apply(ctx, strings.Join(docs, "\n---\n"))
	return err
}

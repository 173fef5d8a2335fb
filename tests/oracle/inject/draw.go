package inject

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"

	"sigs.k8s.io/yaml"
)

type object = map[string]any

// drawer draws workloads.
type drawer struct{ *rand.Rand }

// Draw draws the n-th case of a seed: a workload of any kind with a Pod of any shape, and annotations; one in twelve
// has an annotation of no use.
func Draw(seed uint64, n int) Case {
	d := drawer{rand.New(rand.NewPCG(seed, uint64(n)))} //nolint:gosec // a test's draw
	c := Case{Name: fmt.Sprintf("seed %d, case %d", seed, n), Native: d.one(3), Broken: d.one(12)}
	c.Config = slices.Sorted(maps.Keys(Configs))[d.IntN(len(Configs)-1)+1] // without the first, aliased
	meta, spec := d.meta(), d.spec()
	if c.Broken {
		a := d.leaf(broken)
		annotations, _ := meta["annotations"].(object)
		if annotations == nil {
			annotations = object{}
		}
		annotations[a[0]] = a[1]
		meta["annotations"] = annotations
	}
	text, err := yaml.Marshal(d.workload(fmt.Sprintf("w%d", n), meta, spec))
	if err != nil {
		panic(err) // maps and texts
	}
	c.Document = string(text)
	return c
}

func (d drawer) one(of int) bool { return d.IntN(of) == 0 }

func (d drawer) word(words ...string) string { return words[d.IntN(len(words))] }

func (d drawer) leaf(table [][]string) []string { return table[d.IntN(len(table))] }

// some sets each entry with a chance of one in of.
func (d drawer) some(of int, entries object) object {
	out := object{}
	for _, k := range slices.Sorted(maps.Keys(entries)) {
		if d.one(of) {
			out[k] = entries[k]
		}
	}
	return out
}

func (d drawer) workload(name string, meta, spec object) object {
	outer := object{"name": name}
	if !d.one(4) {
		outer["namespace"] = d.word("shop", "default", "istio-system")
	}
	template := object{"metadata": meta, "spec": spec}
	o := object{"metadata": outer, "apiVersion": "apps/v1"}
	switch kind := d.word("Pod", "Pod", "Deployment", "Deployment", "Deployment", "DaemonSet", "StatefulSet", "ReplicaSet", "Job", "CronJob",
		"ReplicationController", "List", "Service"); kind {
	case "Pod":
		return d.pod(outer, meta, spec)
	case "Job":
		o["apiVersion"], o["kind"], o["spec"] = "batch/v1", kind, object{"template": template}
	case "CronJob":
		// Where istioctl looks for the Pod's metadata the same are written.
		o["apiVersion"], o["kind"] = "batch/v1", kind
		o["spec"] = object{"schedule": "* * * * *", "jobTemplate": object{"metadata": meta, "spec": object{"template": template}}}
	case "ReplicationController":
		o["apiVersion"], o["kind"], o["spec"] = "v1", kind, object{"template": template}
	case "Service":
		o["apiVersion"], o["kind"], o["spec"] = "v1", kind, object{"ports": []any{object{"port": 80}}}
	case "List":
		o["kind"], o["spec"] = "Deployment", object{"template": template}
		return object{"apiVersion": "v1", "kind": "List", "items": []any{o, d.pod(object{"name": name + "-pod"}, d.meta(), d.spec())}}
	default:
		o["kind"], o["spec"] = kind, object{"template": template}
	}
	return o
}

// pod makes a Pod, that of a controller now and then.
func (d drawer) pod(outer, meta, spec object) object {
	m := maps.Clone(outer)
	maps.Copy(m, meta)
	if d.one(2) {
		delete(m, "name")
		m["generateName"] = "web-5f7-"
		owner := d.leaf([][]string{{"apps/v1", "ReplicaSet", "web-5f7"}, {"batch/v1", "Job", "tick-28912345"}, {"batch/v1", "Job", "once"},
			{"apps/v1", "StatefulSet", "db"}, {"v1", "ReplicationController", "dc-1"}})
		m["ownerReferences"] = []any{object{"apiVersion": owner[0], "kind": owner[1], "name": owner[2], "uid": "u", "controller": !d.one(6)}}
		labels, _ := m["labels"].(object)
		labels = maps.Clone(labels)
		if labels == nil {
			labels = object{}
		}
		labels[d.word("pod-template-hash", "rollouts-pod-template-hash", "deploymentconfig")] = "5f7"
		m["labels"] = labels
	}
	return object{"apiVersion": "v1", "kind": "Pod", "metadata": m, "spec": spec}
}

func (d drawer) meta() object {
	meta := object{}
	labels := d.some(4, object{
		"app": "web", "version": "v2", "app.kubernetes.io/name": "shop-web", "app.kubernetes.io/version": "3.1", "istio.io/rev": "canary",
		"service.istio.io/canonical-name": "canon", "service.istio.io/canonical-revision": "r9", "service.istio.io/workload-name": "wl",
		"topology.istio.io/network": d.word("net9", ""), "security.istio.io/tlsMode": "disabled", "istio-locality": "r1.z1.s1",
	})
	if d.one(6) {
		labels["sidecar.istio.io/inject"] = d.word("true", "true", "false", "maybe", "")
	}
	if len(labels) > 0 {
		meta["labels"] = labels
	}
	annotations := object{}
	for range d.IntN(7) {
		a := d.leaf(annotated)
		annotations[a[0]] = a[1+d.IntN(len(a)-1)]
	}
	if len(annotations) > 0 {
		meta["annotations"] = annotations
	}
	return meta
}

func (d drawer) spec() object {
	spec := d.some(6, object{
		"hostNetwork": d.one(3), "dnsPolicy": d.word("ClusterFirst", "Default"), "serviceAccountName": "bob", "nodeName": "n1",
		"restartPolicy":    "Always",
		"securityContext":  object{"fsGroup": 2000, "runAsUser": 1000, "runAsNonRoot": true},
		"imagePullSecrets": []any{object{"name": d.word("mine", "pull")}}, "terminationGracePeriodSeconds": 60,
		"volumes":                      []any{object{"name": d.word("data", "istio-data"), "emptyDir": object{"medium": "Memory"}}},
		"automountServiceAccountToken": false,
		"tolerations":                  []any{object{"key": "k", "operator": "Exists"}}, "priorityClassName": "high",
		"affinity": object{"nodeAffinity": object{"requiredDuringSchedulingIgnoredDuringExecution": object{"nodeSelectorTerms": []any{
			object{"matchExpressions": []any{object{"key": "disk", "operator": "In", "values": []any{"ssd"}}}}}}}},
	})
	list := []any{d.container("web")}
	for i := range d.IntN(3) {
		list = append(list, d.container(fmt.Sprintf("side%d", i)))
	}
	var init []any
	for i := range d.IntN(3) {
		c := d.container(fmt.Sprintf("init%d", i))
		if d.one(3) {
			c["restartPolicy"] = "Always"
		}
		init = append(init, c)
	}
	if d.one(4) {
		own := d.own()
		if d.one(4) {
			init = append(init, own)
		} else {
			list = slices.Insert(list, d.IntN(len(list)+1), any(own))
		}
	}
	if d.one(12) {
		init = append(init, object{"name": d.word("istio-init", "istio-validation"), "image": "auto",
			"resources": object{"limits": object{"cpu": "1"}}})
	}
	spec["containers"] = list
	if init != nil {
		spec["initContainers"] = init
	}
	return spec
}

// own draws a user's own proxy container.
func (d drawer) own() object {
	own := d.some(3, object{
		"resources":       object{"requests": object{"cpu": "333m"}, "limits": object{"memory": "3Gi"}},
		"env":             []any{object{"name": "MINE", "value": "x"}, object{"name": "TRUST_DOMAIN", "value": "mine"}},
		"securityContext": object{"runAsUser": 1000 + d.IntN(3)*337, "runAsGroup": 77},
		"lifecycle":       object{"preStop": object{"exec": object{"command": []any{"sleep", "3"}}}},
		"ports":           []any{object{"containerPort": 8443, "name": "tls"}}, "args": []any{"proxy", "mine"},
		"readinessProbe": object{"initialDelaySeconds": 9},
		"volumeMounts":   []any{object{"name": "data", "mountPath": "/data"}}, "command": []any{"x"},
		"startupProbe": object{"httpGet": object{"path": "/mine", "port": 1}},
	})
	own["name"], own["image"] = "istio-proxy", d.word("auto", "auto", "example.com/own:1")
	return own
}

func (d drawer) container(name string) object {
	c := d.some(3, object{
		"ports": []any{object{"containerPort": 80 + d.IntN(9000), "name": "http"},
			object{"containerPort": 53, "protocol": d.word("UDP", "TCP", "SCTP"), "name": "dns"}},
		"readinessProbe": d.probe(), "livenessProbe": d.probe(), "startupProbe": d.probe(),
		"lifecycle": d.some(2, object{"preStop": d.handler(), "postStart": d.handler()}),
		"env":       []any{object{"name": "A", "value": "<b> & c"}}, "resources": object{"requests": object{"cpu": "10m"}},
		"securityContext": object{"runAsUser": 5, "readOnlyRootFilesystem": true},
		"volumeMounts":    []any{object{"name": "data", "mountPath": "/d"}},
	})
	c["name"], c["image"] = name, d.word("nginx", "nginx:1.27", "example.com:5000/a/b@sha256:0123")
	return c
}

func (d drawer) port() any {
	return []any{8080, 80, "http", "dns", 15020}[d.IntN(5)]
}

// handler draws the action of a probe or a hook.
func (d drawer) handler() object {
	switch d.IntN(5) {
	case 0, 1:
		get := d.some(2, object{"path": "/r?a=1&b=2", "scheme": d.word("HTTP", "HTTPS"), "host": "other",
			"httpHeaders": []any{object{"name": "H", "value": "v"}}})
		get["port"] = d.port()
		return object{"httpGet": get}
	case 2, 3:
		return object{"tcpSocket": object{"port": d.port()}}
	}
	return object{"exec": object{"command": []any{"true"}}}
}

func (d drawer) probe() object {
	p := d.handler()
	if d.one(4) {
		p = object{"grpc": d.some(2, object{"service": "svc"})}
		p["grpc"].(object)["port"] = 9000
	}
	maps.Copy(p, d.some(3, object{"timeoutSeconds": 4, "periodSeconds": 7, "initialDelaySeconds": 1}))
	return p
}

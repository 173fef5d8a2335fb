package differential

import (
	"fmt"
	"strings"

	"pgregory.net/rapid"
)

// version is the label that tells apart the states of one object.
const version = "version-of-the-test"

// ident names an object that several sources may have. Its kind is "networking.istio.io/v1 Sidecar".
type ident struct{ kind, namespace, name string }

func (id ident) group() string {
	group, _, found := strings.Cut(id.kind, "/")
	if !found {
		return ""
	}
	return group
}

// bodies are the parts of an object below its metadata; n makes its states differ. A kind with several has one of them
// drawn.
var bodies = map[string][]func(n int) string{
	"v1 Namespace": {text("")},
	"v1 Node":      {text("")},
	"v1 Service": {
		text("spec: {clusterIP: 10.96.0.1, selector: {app: a}, ports: [{name: http, port: 80, targetPort: 8080}, {name: tcp-%d, port: 90%d}]}"),
		text("spec: {clusterIP: None, selector: {app: b}, ports: [{name: http, port: 80, targetPort: 80%d0}]}"),
		text("spec: {type: ExternalName, externalName: www%d.example.com, ports: [{name: http, port: 80}]}"),
	},
	"v1 Pod": {
		pod("True"), pod("False"),
		text("spec: {nodeName: n1, serviceAccountName: a, containers: []}\nstatus: {phase: Succeeded, podIP: 10.1.0.%d}"),
	},
	"v1 Endpoints": {text("subsets: [{addresses: [{ip: 10.3.0.%d, targetRef: {kind: Pod, name: x}}], ports: [{name: http, port: 8080}]}]")},
	"discovery.k8s.io/v1 EndpointSlice": {
		text("addressType: IPv4\nendpoints: [{addresses: [10.2.0.%d], targetRef: {kind: Pod, name: x}, conditions: {ready: true}}, {addresses: " +
			"[10.2.1.%d]}]\nports: [{name: http, port: 8080}]"),
		text("addressType: IPv4\nendpoints: [{addresses: [10.2.0.%d], conditions: {ready: false}}]\nports: [{name: http, port: 8080}]"),
	},
	"networking.istio.io/v1 WorkloadEntry": {
		text("spec: {address: 10.4.0.%d, labels: {app: a}, serviceAccount: a}"),
		text("spec: {address: 10.4.0.%d, labels: {app: b}, network: n1}"),
	},
	"networking.istio.io/v1 ServiceEntry": {
		text("spec: {hosts: [www.example.com, more%d.example.com], ports: [{number: 80, name: http, protocol: HTTP}], resolution: DNS}"),
		text("spec: {hosts: [www.example.com], ports: [{number: 80, name: http, protocol: HTTP, targetPort: 808%d}], resolution: STATIC, " +
			"workloadSelector: {labels: {app: a}}}"),
		text("spec: {hosts: [x.apps.svc.cluster.local], exportTo: ['.'], ports: [{number: 8%d, name: http, protocol: HTTP}], resolution: " +
			"STATIC, location: MESH_INTERNAL, endpoints: [{address: 10.5.0.1}]}"),
	},
	"networking.istio.io/v1 VirtualService": {
		text("spec: {hosts: [x], http: [{route: [{destination: {host: z}}], timeout: %ds}]}"),
		text("spec: {hosts: [x.example.com], gateways: [x], http: [{match: [{uri: {prefix: /d}}], delegate: {name: z, namespace: apps}}, " +
			"{route: [{destination: {host: x}}], timeout: %ds}]}"),
		text("spec: {http: [{route: [{destination: {host: x}}], retries: {attempts: %d}}]}"),
	},
	"networking.istio.io/v1 DestinationRule": {
		text("spec: {host: x, subsets: [{name: s%d, labels: {app: a}}]}"),
		text("spec: {host: x.apps.svc.cluster.local, exportTo: ['.'], trafficPolicy: {loadBalancer: {localityLbSetting: {failoverPriority: " +
			"[kubernetes.io/hostname]}}, connectionPool: {tcp: {maxConnections: %d}}}}"),
	},
	"networking.istio.io/v1 Gateway": {
		text("spec: {selector: {app: a}, servers: [{port: {number: 80%d, name: http, protocol: HTTP}, hosts: ['*']}]}")},
	"networking.istio.io/v1 Sidecar": {text("spec: {egress: [{hosts: [./*, x/s%d.example.com]}]}")},
	"networking.istio.io/v1beta1 ProxyConfig": {
		text("spec: {concurrency: %d, selector: {matchLabels: {app: a}}}"),
	},
	"security.istio.io/v1 PeerAuthentication": {text("spec: {mtls: {mode: STRICT}, selector: {matchLabels: {app: a%d}}}")},
	"v1 ConfigMap": {
		mesh("connectTimeout: %ds"), mesh("rootNamespace: apps"), mesh("trustDomain: td%d.local"),
		mesh("discoverySelectors: [{matchLabels: {mesh: 'on'}}]"),
		mesh("discoverySelectors: [{matchLabels: {mesh: 'on'}}, {matchLabels: {kubernetes.io/metadata.name: other}}]"),
		mesh("defaultServiceExportTo: ['.']"), mesh("localityLbSetting: {failoverPriority: [kubernetes.io/hostname]}"),
	},
}

// text is a body in which each %d becomes n.
func text(format string) func(int) string {
	return func(n int) string { return strings.ReplaceAll(format, "%d", fmt.Sprint(n)) }
}

func pod(ready string) func(int) string {
	return text("spec: {nodeName: n1, serviceAccountName: a, containers: [{name: c, ports: [{name: http, containerPort: 8080}]}]}\n" +
		"status: {podIP: 10.1.0.%d, conditions: [{type: Ready, status: \"" + ready + "\"}]}")
}

func mesh(settings string) func(int) string { return text("data: {mesh: \"" + settings + "\"}") }

// weighted are the kinds as they are drawn: endpoints, namespaces and the mesh configuration more often than others.
var weighted = func() []string {
	var out []string
	for _, kind := range rapidOrder() {
		times := 2
		switch kind {
		case "v1 Pod", "discovery.k8s.io/v1 EndpointSlice", "networking.istio.io/v1 WorkloadEntry":
			times = 6
		case "v1 Service", "v1 Namespace":
			times = 4
		}
		for range times {
			out = append(out, kind)
		}
	}
	return out
}()

func rapidOrder() []string {
	var out []string
	for kind := range bodies {
		out = append(out, kind)
	}
	return sorted(out)
}

// drawn is one state of an object.
type drawn struct {
	ident   ident
	version string
	yaml    string
	// broken is true if the object must be refused.
	broken bool
}

func drawIdent(t *rapid.T) ident {
	id := ident{kind: rapid.SampledFrom(weighted).Draw(t, "kind"),
		namespace: rapid.SampledFrom([]string{"apps", "apps", "other"}).Draw(t, "namespace")}
	id.name = rapid.SampledFrom([]string{"x", "x", "z"}).Draw(t, "name")
	switch id.kind {
	case "v1 Namespace":
		id.namespace, id.name = "", rapid.SampledFrom([]string{"apps", "other", "istio-system"}).Draw(t, "called")
	case "v1 Node":
		id.namespace, id.name = "", "n1"
	case "v1 ConfigMap":
		id.namespace, id.name = "istio-system", "istio"
	}
	return id
}

func drawObject(t *rapid.T, id ident, serial int) drawn {
	labels := []string{fmt.Sprintf("%s: v%d", version, serial)}
	for _, l := range []string{"app: a", "mesh: 'on'", "kubernetes.io/service-name: x", "topology.istio.io/network: n2",
		"topology.kubernetes.io/region: r1"} {
		if rapid.IntRange(0, 2).Draw(t, "label") > 0 {
			labels = append(labels, l)
		}
	}
	d := drawn{ident: id, version: fmt.Sprintf("v%d", serial)}
	d.yaml = manifestOf(id, labels, rapid.SampledFrom(bodies[id.kind]).Draw(t, "body")(rapid.IntRange(1, 3).Draw(t, "n")))
	// A refused PeerAuthentication is replaced by one that closes, which tests of package file cover.
	if !strings.HasSuffix(id.kind, " PeerAuthentication") && rapid.IntRange(0, 9).Draw(t, "broken") == 0 {
		d.broken = true
		d.yaml += "unknownField: true\n"
	}
	return d
}

func manifestOf(id ident, labels []string, body string) string {
	apiVersion, kind, _ := strings.Cut(id.kind, " ")
	namespace := ""
	if id.namespace != "" {
		namespace = ", namespace: " + id.namespace
	}
	return fmt.Sprintf("apiVersion: %s\nkind: %s\nmetadata: {name: %s%s, labels: {%s}}\n%s\n", apiVersion, kind, id.name, namespace,
		strings.Join(labels, ", "), body)
}

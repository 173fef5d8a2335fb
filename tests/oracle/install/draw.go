package install

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"

	"sigs.k8s.io/yaml"
)

// drawer draws inputs.
type drawer struct {
	*rand.Rand
}

// Draw draws the n-th case of a seed: a profile, settings, files; about one in four is broken.
func Draw(seed uint64, n int) Case {
	d := drawer{rand.New(rand.NewPCG(seed, uint64(n)))} //nolint:gosec // a test's draw
	c := Case{Name: fmt.Sprintf("seed %d, case %d", seed, n)}
	if d.IntN(3) > 0 {
		c.Set = append(c.Set, "profile="+d.word("default", "demo", "minimal", "empty", "remote", "preview", "stable", "ambient", "openshift",
			"openshift-ambient"))
	}
	for range d.IntN(3) {
		c.Files = append(c.Files, d.file())
	}
	for range d.IntN(5) {
		c.Set = append(c.Set, d.setting())
	}
	if d.IntN(6) == 0 {
		c.Flags = append(c.Flags, "--revision", d.word("canary", "1-31-0", "r2"))
	}
	if d.IntN(4) == 0 {
		c.Set = append(c.Set, d.broken())
		if d.IntN(8) == 0 {
			c.Flags = append(c.Flags, "--force")
		}
	}
	return c
}

func (d drawer) word(words ...string) string { return words[d.IntN(len(words))] }

// leaf is a field of the spec with values for it, as YAML.
type leaf struct {
	path   string
	values []string
}

var leaves = []leaf{
	{"hub", []string{"example.com/mesh", "localhost:5000/istio", "docker.io/istio"}},
	{"tag", []string{`"1.31.0"`, "latest", `"1.10"`}},
	{"revision", []string{"canary", "prod-1"}},
	{"compatibilityVersion", []string{`"1.28"`, `"1.30"`}},
	{"meshConfig.accessLogFile", []string{"/dev/stdout", `""`}},
	{"meshConfig.enableTracing", []string{"true", "false"}},
	{"meshConfig.trustDomain", []string{"example.org", "td2"}},
	{"meshConfig.defaultConfig.proxyMetadata.A_B", []string{`"1"`, "x"}},
	{"meshConfig.defaultConfig.holdApplicationUntilProxyStarts", []string{"true"}},
	{"meshConfig.outboundTrafficPolicy.mode", []string{"REGISTRY_ONLY", "ALLOW_ANY"}},
	{"components.base.enabled", []string{"true", "false"}},
	{"components.pilot.enabled", []string{"true", "false"}},
	{"components.pilot.namespace", []string{"control", "istio-system"}},
	{"components.cni.enabled", []string{"true", "false"}},
	{"components.cni.namespace", []string{"kube-system"}},
	{"components.ztunnel.enabled", []string{"true", "false"}},
	{"components.pilot.hub", []string{"example.com/pilot"}},
	{"values.global.hub", []string{"example.com/global"}},
	{"values.global.istioNamespace", []string{"mesh", "istio-system"}},
	{"values.global.variant", []string{"distroless", "debug"}},
	{"values.global.imagePullPolicy", []string{"Always", "IfNotPresent"}},
	{"values.global.imagePullSecrets", []string{"[a]", "[a, b]", "[]"}},
	{"values.global.logAsJson", []string{"true", "false"}},
	{"values.global.logging.level", []string{"default:debug"}},
	{"values.global.meshID", []string{"mesh1"}},
	{"values.global.network", []string{"net1"}},
	{"values.global.multiCluster.clusterName", []string{"c1"}},
	{"values.global.networkPolicy.enabled", []string{"true"}},
	{"values.global.platform", []string{"openshift", "gke", "k3d", "minikube"}},
	{"values.global.priorityClassName", []string{"system-cluster-critical"}},
	{"values.global.proxy.autoInject", []string{"disabled"}},
	{"values.global.proxy.clusterDomain", []string{"cluster.example"}},
	{"values.global.proxy.includeIPRanges", []string{`"*"`, "10.0.0.0/8"}},
	{"values.global.proxy.excludeInboundPorts", []string{`"9090"`, `"80,81"`}},
	{"values.global.proxy.resources.requests.cpu", []string{"20m"}},
	{"values.global.proxy.statusPort", []string{"15020", "15099"}},
	{"values.global.proxy.privileged", []string{"true"}},
	{"values.global.proxy.holdApplicationUntilProxyStarts", []string{"true"}},
	{"values.global.resourceScope", []string{"all", "cluster", "namespace"}},
	{"values.global.sts.servicePort", []string{"15463"}},
	{"values.global.waypoint.resources.limits.cpu", []string{`"1"`}},
	{"values.pilot.autoscaleEnabled", []string{"true", "false"}},
	{"values.pilot.autoscaleMin", []string{"2", "1"}},
	{"values.pilot.autoscaleMax", []string{"9"}},
	{"values.pilot.replicaCount", []string{"1", "3"}},
	{"values.pilot.traceSampling", []string{"0.5", "100"}},
	{"values.pilot.env", []string{"{A: b}", `{PILOT_X: "true", PILOT_Y: "2"}`, "{}"}},
	{"values.pilot.image", []string{"pilot2", "example.com/x/pilot:1"}},
	{"values.pilot.podAnnotations", []string{"{a/b: c}"}},
	{"values.pilot.tolerations", []string{"[{key: k, operator: Exists}]"}},
	{"values.pilot.nodeSelector", []string{"{disk: ssd}"}},
	{"values.pilot.resources.requests.memory", []string{"1Gi"}},
	{"values.pilot.keepaliveMaxServerConnectionAge", []string{"5m"}},
	{"values.pilot.volumes", []string{"[{name: v, emptyDir: {}}]"}},
	{"values.pilot.volumeMounts", []string{"[{name: v, mountPath: /v}]"}},
	{"values.pilot.deploymentLabels", []string{"{x: y}"}},
	{"values.pilot.ipFamilyPolicy", []string{"PreferDualStack"}},
	{"values.cni.chained", []string{"true", "false"}},
	{"values.cni.excludeNamespaces", []string{"[a, b]", "[]"}},
	{"values.cni.ambient.enabled", []string{"true", "false"}},
	{"values.cni.cniBinDir", []string{"/opt/bin"}},
	{"values.cni.repair.enabled", []string{"false"}},
	{"values.cni.resource_quotas.enabled", []string{"true"}},
	{"values.gateways.istio-ingressgateway.type", []string{"NodePort", "ClusterIP"}},
	{"values.gateways.istio-ingressgateway.autoscaleEnabled", []string{"false", "true"}},
	{"values.gateways.istio-ingressgateway.serviceAnnotations", []string{"{a: b}"}},
	{"values.gateways.istio-ingressgateway.injectionTemplate", []string{"gateway"}},
	{"values.gateways.istio-ingressgateway.runAsRoot", []string{"true"}},
	{"values.gateways.istio-ingressgateway.env", []string{"{A: b}"}},
	{"values.gateways.istio-egressgateway.labels", []string{"{app: e, istio: e}"}},
	{"values.gateways.securityContext", []string{"{runAsUser: 7}"}},
	{"values.sidecarInjectorWebhook.enableNamespacesByDefault", []string{"true"}},
	{"values.sidecarInjectorWebhook.rewriteAppHTTPProbe", []string{"false"}},
	{"values.sidecarInjectorWebhook.injectedAnnotations", []string{"{a: b}"}},
	{"values.sidecarInjectorWebhook.templates", []string{"{custom: \"spec: {}\"}"}},
	{"values.revisionTags", []string{"[stable, beta]"}},
	{"values.defaultRevision", []string{"default", "x"}},
	{"values.telemetry.enabled", []string{"false"}},
	{"values.telemetry.v2.stackdriver.enabled", []string{"true"}},
	{"values.ztunnel.logLevel", []string{"debug"}},
	{"values.base.enableCRDTemplates", []string{"false"}},
	{"values.base.validationURL", []string{"https://example.com/validate"}},
	{"values.experimental.stableValidationPolicy", []string{"true"}},
}

// settings are the Kubernetes settings that are drawn for a component.
var settings = []leaf{
	{"replicaCount", []string{"1", "2", "5"}},
	{"resources.requests.cpu", []string{"10m", `"1"`}},
	{"resources.limits.memory", []string{"1Gi"}},
	{"hpaSpec.minReplicas", []string{"1", "2"}},
	{"hpaSpec.maxReplicas", []string{"7"}},
	{"hpaSpec.metrics", []string{"[{type: Resource, resource: {name: cpu, target: {type: Utilization, averageUtilization: 60}}}]"}},
	{"podDisruptionBudget.minAvailable", []string{"1", "50%"}},
	{"podAnnotations", []string{"{a.b/c: d}"}},
	{"env", []string{"[{name: A, value: b}]", "[{name: POD_NAME, value: x}, {name: Z, valueFrom: {fieldRef: {fieldPath: status.podIP}}}]"}},
	{"imagePullPolicy", []string{"Always", "Never"}},
	{"priorityClassName", []string{"high"}},
	{"nodeSelector", []string{"{disk: ssd}", "{kubernetes.io/os: linux}"}},
	{
		"affinity", []string{"{podAntiAffinity: {preferredDuringSchedulingIgnoredDuringExecution: [{weight: 1, podAffinityTerm: {topologyKey: " +
			"zone}}]}}"}},
	{"tolerations", []string{"[{key: k, operator: Exists}]", "[]"}},
	{"serviceAnnotations", []string{"{a: b}"}},
	{"service.type", []string{"ClusterIP", "LoadBalancer"}},
	{"service.ports", []string{"[{name: x, port: 8080, targetPort: 8080}]", "[{name: y, port: 15012, targetPort: 15099}]"}},
	{"service.externalTrafficPolicy", []string{"Local"}},
	{"securityContext", []string{"{runAsUser: 5, fsGroup: 6}"}},
	{"readinessProbe.periodSeconds", []string{"9"}},
	{"strategy", []string{"{type: RollingUpdate, rollingUpdate: {maxSurge: 1}}", "{rollingUpdate: {maxUnavailable: 10%}}"}},
	{"overlays", []string{
		"[{apiVersion: apps/v1, kind: Deployment, name: istiod, patches: [{path: metadata.labels.x, value: \"y\"}]}]",
		"[{kind: Deployment, name: istiod, patches: [{path: 'spec.template.spec.containers.[name:discovery].args.[0]', value: d}]}]",
		"[{kind: Deployment, name: istiod, patches: [{path: 'spec.template.spec.containers.[name:discovery].args[-1]', value: d}]}]",
		"[{kind: Deployment, name: istiod, patches: [{path: 'spec.template.spec.containers.[name:discovery].args.[--domain]'}]}]",
		"[{kind: Deployment, name: istio-ingressgateway, patches: [{path: spec.template.spec.tolerations, value: [{key: z}]}]}]",
		"[{kind: Service, name: istio-ingressgateway, patches: [{path: 'spec.ports.[port:80].nodePort', value: 30080}, {path: spec.type, " +
			"value: NodePort}]}]",
		"[{kind: Deployment, name: istiod, patches: [{path: spec.strategy, value: \"type: Recreate\\n\"}]}]",
		"[{kind: ConfigMap, name: istio, patches: [{path: data.extra, value: plain}]}]",
		"[{kind: DaemonSet, name: istio-cni-node, patches: [{path: 'spec.template.spec.containers.[name:install-cni].env.[name:NODE_NAME]'}]}]",
		"[{kind: Deployment, name: nobody, patches: [{path: spec.replicas, value: 3}]}]",
	}},
}

// keys divides a path of the tables, in which no key has a dot.
func keys(path string) []string { return strings.Split(path, ".") }

func (d drawer) leaf(table []leaf) (path, value string) {
	l := table[d.IntN(len(table))]
	return l.path, l.values[d.IntN(len(l.values))]
}

// file draws an IstioOperator.
func (d drawer) file() string {
	spec := map[string]any{}
	for range 1 + d.IntN(5) {
		path, value := d.leaf(leaves)
		put(spec, parsed(value), keys(path)...)
	}
	for range d.IntN(4) {
		path, value := d.leaf(settings)
		put(spec, parsed(value), append([]string{"components", d.word("pilot", "pilot", "cni", "ztunnel"), "k8s"}, keys(path)...)...)
	}
	for _, kind := range []string{"ingressGateways", "egressGateways"} {
		if d.IntN(3) > 0 {
			continue
		}
		var list []any
		for _, name := range []string{"istio-" + strings.TrimSuffix(kind, "Gateways") + "gateway", "edge"}[:1+d.IntN(2)] {
			list = append(list, d.gateway(name))
		}
		put(spec, list, "components", kind)
	}
	text, err := yaml.Marshal(map[string]any{"apiVersion": "install.istio.io/v1alpha1", "kind": "IstioOperator", "spec": spec})
	if err != nil {
		return err.Error()
	}
	return string(text)
}

func (d drawer) gateway(name string) map[string]any {
	g := map[string]any{"name": name}
	if d.IntN(3) > 0 {
		g["enabled"] = d.IntN(4) > 0
	}
	if d.IntN(4) == 0 {
		g["namespace"] = "gateways"
	}
	if d.IntN(3) == 0 {
		g["label"] = map[string]any{"istio": name, "tier": "edge"}
	}
	for range d.IntN(4) {
		path, value := d.leaf(settings)
		put(g, parsed(value), append([]string{"k8s"}, keys(path)...)...)
	}
	return g
}

// setting draws a --set of a scalar.
func (d drawer) setting() string {
	for {
		path, value := d.leaf(leaves)
		if d.IntN(3) == 0 {
			path, value = d.leaf(settings)
			path = "components." + d.word("pilot", "cni", "ztunnel") + ".k8s." + path
		}
		value = strings.Trim(value, `"`)
		if !strings.ContainsAny(value, "{[") {
			return path + "=" + value
		}
	}
}

// broken draws a setting that is wrong, or odd.
func (d drawer) broken() string {
	return d.word("foo=1", "components.foo.enabled=true", "values.foo=1", "values.global.foo=x", "values.pilot.foo.bar=1", "hub=3", "tag=a:b",
		"hub=http://x",
		"revision=a.b", "components.pilot.enabled=maybe", "components.pilot.k8s.foo=1", "components.pilot.k8s.replicaCount=many",
		"components.pilot.k8s.replicaCount=-1",
		"components.pilot.k8s.resources.requests.cpu=abc", "components.pilot.k8s.hpaSpec.foo=1", "components.base.namespace=x", "profile=none",
		"values.global.proxy.foo=1",
		"values.pilot.autoscaleMin=x", "values.pilot.autoscaleEnabled=1", "values.global.proxy.tracer=foo", "values.pilot.env=1",
		"values.pilot.tolerations=x",
		"components.ingressGateways[name:none].enabled=true", "components.pilot.k8s.tolerations[x].key=a", "meshConfig.rootNamespace=1",
		"meshConfig=1", "compatibilityVersion=9.9",
		"values.global.platform=moon", "values.profile=none", "components.pilot.k8s.nodeSelector.a=true", "values.global.imagePullSecrets=a",
		"components.pilot.k8s.overlays[0].foo=1", "values.revision="+strconv.Itoa(d.IntN(9)), "components.cni=1", "components.ingressGateways=1")
}

func parsed(text string) any {
	var v any
	if err := yaml.Unmarshal([]byte(text), &v); err != nil {
		return text
	}
	return v
}

func put(m map[string]any, v any, keys ...string) {
	for _, k := range keys[:len(keys)-1] {
		next, ok := m[k].(map[string]any)
		if !ok {
			next = map[string]any{}
			m[k] = next
		}
		m = next
	}
	m[keys[len(keys)-1]] = v
}

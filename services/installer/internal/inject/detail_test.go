package inject_test

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/wrapperspb"
	networking "istio.io/api/networking/v1beta1"
	typev1beta1 "istio.io/api/type/v1beta1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"fairlead.dev/pkg/proxyconfig"
	"fairlead.dev/services/installer/internal/inject"
)

const inits = `{containers: [{name: web, image: nginx}], initContainers: [{name: mine, image: x}, {name: istio-validation, image: x}]}`

func TestOrderOfContainers(t *testing.T) {
	for name, c := range map[string]struct{ annotations, containers, inits string }{
		"a classic proxy is last, and redirection after other init containers": {"", "web istio-proxy", "istio-validation mine istio-init"},
		"an application that waits comes after the proxy": {`proxy.istio.io/config: "holdApplicationUntilProxyStarts: true"`,
			"istio-proxy web", "istio-validation mine istio-init"},
		"a native proxy runs before other init containers": {`sidecar.istio.io/nativeSidecar: "true"`, "web",
			"istio-init istio-validation istio-proxy mine"},
	} {
		t.Run(name, func(t *testing.T) {
			pod := injected(t, configOf(t, ""), inject.Request{Pod: podOf(t, c.annotations, inits)}).Pod
			if got := names(pod.Spec.Containers); got != c.containers {
				t.Errorf("containers %s, want %s", got, c.containers)
			}
			if got := names(pod.Spec.InitContainers); got != c.inits {
				t.Errorf("init containers %s, want %s", got, c.inits)
			}
		})
	}
}

func TestNativeSidecars(t *testing.T) {
	native := func(t *testing.T, r inject.Request) bool {
		pod := injected(t, configOf(t, ""), r).Pod
		return strings.Contains(names(pod.Spec.InitContainers), "istio-proxy") && !strings.Contains(names(pod.Spec.Containers), "istio-proxy")
	}
	if native(t, inject.Request{Pod: podOf(t, "", app)}) || !native(t, inject.Request{Pod: podOf(t, "", app), NativeSidecars: true}) {
		t.Error("the request does not decide")
	}
	if native(t, inject.Request{Pod: podOf(t, `sidecar.istio.io/nativeSidecar: "false"`, app), NativeSidecars: true}) {
		t.Error("the annotation does not win")
	}
	own := `containers: [{name: istio-proxy, image: auto, env: [{name: MINE, value: x}]}, {name: web, image: nginx}]`
	pod := injected(t, configOf(t, ""), inject.Request{Pod: podOf(t, "", own), NativeSidecars: true}).Pod
	if p := proxyOf(t, pod); names(pod.Spec.Containers) != "web" || envOf(p, "MINE") != "x" || p.RestartPolicy == nil {
		t.Errorf("an own container is not part of the native sidecar: %s, %+v", names(pod.Spec.Containers), p)
	}
	for version, want := range map[string]bool{"v1.32.9": false, "v1.33.0": true, "v1.34.1+k3s1": true, "v2.0.0": true, "": false,
		"x": false} {
		if inject.RunsNativeSidecars(version) != want {
			t.Errorf("kubelet %q: want %t", version, want)
		}
	}
}

func TestApplicationsAreToldToEndAfterTheDelay(t *testing.T) {
	own := `containers: [{name: web, image: nginx}, {name: hooked, image: nginx, lifecycle: {postStart: {exec: {command: [a]}}, preStop: {exec: {command: [b]}}}}]`
	for _, native := range []bool{true, false} {
		pod := injected(t, configOf(t, ""), inject.Request{Pod: podOf(t, inject.StopDelayAnnotation+": 3s", own), NativeSidecars: native}).Pod
		for _, c := range slices.Concat(pod.Spec.Containers, pod.Spec.InitContainers) {
			delayed := c.Lifecycle != nil && c.Lifecycle.PreStop != nil && c.Lifecycle.PreStop.Sleep != nil && c.Lifecycle.PreStop.Sleep.Seconds == 3
			if want := c.Name == "web"; delayed != want {
				t.Errorf("native %t, container %s: delayed %t, want %t: %+v", native, c.Name, delayed, want, c.Lifecycle)
			}
			if c.Name == "hooked" && (c.Lifecycle.PreStop.Exec == nil || c.Lifecycle.PostStart == nil) {
				t.Errorf("an own hook is lost: %+v", c.Lifecycle)
			}
		}
	}
}

func TestOwnProxyContainerHasTheLastWord(t *testing.T) {
	pod := injected(t, configOf(t, ""), inject.Request{Pod: podOf(t, "", `
containers:
- {name: istio-proxy, image: auto, args: [mine], securityContext: {runAsUser: 7}, env: [{name: POD_NAME, value: x}], readinessProbe: {initialDelaySeconds: 9}}
- {name: web, image: nginx}`)}).Pod
	p := proxyOf(t, pod)
	if p.Image != "example.com/mesh/proxy:v1" || p.Args[0] != "mine" || *p.SecurityContext.RunAsUser != 7 ||
		p.ReadinessProbe.InitialDelaySeconds != 9 || p.ReadinessProbe.HTTPGet == nil {
		t.Errorf("proxy %+v", p)
	}
	if args := pod.Spec.InitContainers[0].Args; args[2] != "7" {
		t.Errorf("redirection does not except the proxy's user: %v", args)
	}
	if !strings.Contains(pod.Annotations["proxy.istio.io/overrides"], `"runAsUser":7`) {
		t.Errorf("overrides %q", pod.Annotations["proxy.istio.io/overrides"])
	}
	tproxy := injected(t, configOf(t, ""),
		inject.Request{Pod: podOf(t, "sidecar.istio.io/interceptionMode: TPROXY",
			`containers: [{name: istio-proxy, image: auto, securityContext: {runAsUser: 7}}]`)}).Pod
	if *proxyOf(t, tproxy).SecurityContext.RunAsUser != 0 {
		t.Error("with TPROXY the proxy is not root")
	}
}

func TestProbesAreAskedThroughTheAgent(t *testing.T) {
	spec := `containers: [{name: web, image: nginx, ports: [{containerPort: 80, name: http}], readinessProbe: {httpGet: {path: /r, port: http, scheme: HTTPS}, timeoutSeconds: 3},
  livenessProbe: {tcpSocket: {port: 81}}, startupProbe: {grpc: {port: 9, service: s}}, lifecycle: {preStop: {httpGet: {path: /p, port: 82}}, postStart: {exec: {command: [a]}}}}]`
	r := injected(t, configOf(t, ""), inject.Request{Pod: podOf(t, `status.sidecar.istio.io/port: "15099"`, spec)})
	web := r.Pod.Spec.Containers[0]
	for path, p := range map[string]*corev1.HTTPGetAction{
		"/app-health/web/readyz": web.ReadinessProbe.HTTPGet, "/app-health/web/livez": web.LivenessProbe.HTTPGet,
		"/app-health/web/startupz": web.StartupProbe.HTTPGet, "/app-lifecycle/web/prestopz": web.Lifecycle.PreStop.HTTPGet,
	} {
		if p == nil || p.Path != path || p.Port.IntVal != 15099 || p.Scheme == corev1.URISchemeHTTPS {
			t.Errorf("%s: %+v", path, p)
		}
	}
	if web.LivenessProbe.TCPSocket != nil || web.StartupProbe.GRPC != nil || web.Lifecycle.PostStart.Exec == nil ||
		web.ReadinessProbe.TimeoutSeconds != 3 {
		t.Errorf("container %+v", web)
	}
	const want = `{"/app-health/web/livez":{"tcpSocket":{"port":81}},"/app-health/web/readyz":{"httpGet":{"path":"/r","port":80,"scheme":"HTTPS"},"timeoutSeconds":3},` +
		`"/app-health/web/startupz":{"grpc":{"port":9,"service":"s"}},"/app-lifecycle/web/prestopz":{"httpGet":{"path":"/p","port":82}}}`
	if got := envOf(proxyOf(t, r.Pod), "ISTIO_KUBE_APP_PROBERS"); got != want {
		t.Errorf("ISTIO_KUBE_APP_PROBERS is\n%s, want\n%s", got, want)
	}
	off := injected(t, configOf(t, ""), inject.Request{Pod: podOf(t, `sidecar.istio.io/rewriteAppHTTPProbers: "false"`, spec)}).Pod
	if off.Spec.Containers[0].ReadinessProbe.HTTPGet.Path != "/r" || envOf(proxyOf(t, off), "ISTIO_KUBE_APP_PROBERS") != "" {
		t.Error("the annotation does not keep the probes")
	}
	missing := injected(t, configOf(t, ""),
		inject.Request{Pod: podOf(t, "", `containers: [{name: web, image: nginx, readinessProbe: {tcpSocket: {port: nobody}}}]`)})
	if !strings.Contains(strings.Join(missing.Warnings, ""), `"nobody"`) {
		t.Errorf("a port that is not there: warnings %v", missing.Warnings)
	}
}

func TestPrometheusScrapesTheAgent(t *testing.T) {
	for name, c := range map[string]struct{ mesh, annotations, port, env string }{
		"without annotations": {"", "", "15020", ""},
		"the application's":   {"", `prometheus.io/port: "80", prometheus-io/path: /m`, "15020", `{"scrape":"","path":"/m","port":"80"}`},
		"several targets": {"", `prometheus.istio.io/scrape-targets: "80:/a,81"`, "15020",
			`{"scrape":"","path":"/a","port":"80","targets":[{"port":"80","path":"/a"},{"port":"81","path":"/metrics"}]}`},
		"a Pod that is not scraped":   {"", `prometheus.io/scrape: "false", prometheus.io/port: "80"`, "80", ""},
		"a Pod that wants no merging": {"", `prometheus.istio.io/merge-metrics: "false", prometheus.io/port: "80"`, "80", ""},
		"a mesh that wants none":      {"enablePrometheusMerge: false", `prometheus.io/port: "80"`, "80", ""},
		"another port of the agent": {"defaultConfig: {statusPort: 15099}", `prometheus.io/port: "80"`, "15099",
			`{"scrape":"","path":"","port":"80"}`},
	} {
		t.Run(name, func(t *testing.T) {
			pod := injected(t, configOf(t, c.mesh), inject.Request{Pod: podOf(t, c.annotations, app)}).Pod
			if got := pod.Annotations["prometheus.io/port"]; got != c.port {
				t.Errorf("prometheus.io/port is %q, want %s", got, c.port)
			}
			if got := envOf(proxyOf(t, pod), "ISTIO_PROMETHEUS_ANNOTATIONS"); got != c.env {
				t.Errorf("ISTIO_PROMETHEUS_ANNOTATIONS is %s, want %s", got, c.env)
			}
		})
	}
	secure := injected(t, configOf(t, "defaultConfig: {proxyMetadata: {ENVOY_SECURE_MERGED_METRICS_PORT: '15091'}}"),
		inject.Request{Pod: podOf(t, "", app)}).Pod
	if secure.Annotations["prometheus.istio.io/secure-port"] != "15091" {
		t.Errorf("annotations %v", secure.Annotations)
	}
}

func TestProxyConfigOfAPod(t *testing.T) {
	resource := func(name string, n int32, labels map[string]string, namespace string) proxyconfig.Resource {
		spec := &networking.ProxyConfig{Concurrency: wrapperspb.Int32(n), EnvironmentVariables: map[string]string{name: "1"}}
		if labels != nil {
			spec.Selector = &typev1beta1.WorkloadSelector{MatchLabels: labels}
		}
		return proxyconfig.Resource{Namespace: namespace, Name: name, Created: time.Unix(1, 0), Spec: spec}
	}
	for name, c := range map[string]struct {
		annotations string
		resources   []proxyconfig.Resource
		want        string
	}{
		"the mesh's": {"", nil, `{"proxyMetadata":{"A":"b"},"concurrency":1}`},
		"the annotation's over it": {`proxy.istio.io/config: "{concurrency: 0, drainDuration: 1m, proxyMetadata: {B: c}}"`, nil,
			`{"drainDuration":"60s","proxyMetadata":{"A":"b","B":"c"},"concurrency":0}`},
		"a namespace's under the annotation": {`proxy.istio.io/config: "concurrency: 3"`,
			[]proxyconfig.Resource{resource("NS", 2, nil, "shop"), resource("ROOT", 7, nil, "istio-system"), resource("OTHER", 8, nil, "other")},
			`{"proxyMetadata":{"A":"b","NS":"1","ROOT":"1"},"concurrency":3}`},
		"a selecting one over all": {`proxy.istio.io/config: "concurrency: 3"`,
			[]proxyconfig.Resource{resource("SEL", 4, map[string]string{"app": "web"}, "shop"),
				resource("NOT", 5, map[string]string{"app": "x"}, "shop")}, `{"proxyMetadata":{"A":"b","SEL":"1"},"concurrency":4}`},
	} {
		t.Run(name, func(t *testing.T) {
			pod := injected(t, configOf(t, "defaultConfig: {concurrency: 1, proxyMetadata: {A: b}}"),
				inject.Request{Pod: podOf(t, c.annotations, app), ProxyConfigs: c.resources}).Pod
			if !sameYAML(t, envOf(proxyOf(t, pod), "PROXY_CONFIG"), c.want) {
				t.Errorf("PROXY_CONFIG is %s, want %s", envOf(proxyOf(t, pod), "PROXY_CONFIG"), c.want)
			}
		})
	}
	r := injected(t, configOf(t, ""), inject.Request{Pod: podOf(t, `proxy.istio.io/config: "nobodyKnows: 1"`, app)})
	if !strings.Contains(strings.Join(r.Warnings, ""), "nobodyKnows") {
		t.Errorf("an unknown field: warnings %v", r.Warnings)
	}
}

func sameYAML(t *testing.T, a, b string) bool {
	t.Helper()
	var x, y any
	if err := yaml.Unmarshal([]byte(a), &x); err != nil {
		t.Fatal(err)
	}
	if err := yaml.Unmarshal([]byte(b), &y); err != nil {
		t.Fatal(err)
	}
	p, _ := yaml.Marshal(x)
	q, _ := yaml.Marshal(y)
	return string(p) == string(q)
}

func TestClusterAndNetwork(t *testing.T) {
	for name, c := range map[string]struct {
		values, label, path, cluster, network string
	}{
		"of the values":                {"v", "", "/inject", "v", "v"},
		"of the URL over the values":   {"v", "", "/inject/cluster/c/net/a--slash--b", "c", "a/b"},
		"the Pod's label over the URL": {"v", "l", "/inject/cluster/c/net/n/", "c", "l"},
		"nothing":                      {"", "", "/inject/", "", ""},
		"the form of older releases":   {"", "", "/inject/:ENV:ISTIO_META_NETWORK=n:ENV:ISTIO_META_CLUSTER_ID=c", "c", "n"},
	} {
		t.Run(name, func(t *testing.T) {
			config := configOf(t, "", `clusterName: ""`, "clusterName: "+c.values, `network: ""`, "network: "+c.values)
			pod := podOf(t, "", app)
			if c.label != "" {
				pod.Labels["topology.istio.io/network"] = c.label
			}
			env, warnings := inject.EnvOfPath(c.path)
			if warnings != nil {
				t.Errorf("warnings %v", warnings)
			}
			out := injected(t, config, inject.Request{Pod: pod, Env: env}).Pod
			p := proxyOf(t, out)
			if envOf(p, "ISTIO_META_CLUSTER_ID") != c.cluster || envOf(p, "ISTIO_META_NETWORK") != c.network ||
				out.Labels["topology.istio.io/network"] != c.network {
				t.Errorf("env %v, labels %v", p.Env, out.Labels)
			}
		})
	}
	if _, warnings := inject.EnvOfPath("/inject/cluster"); len(warnings) != 1 {
		t.Errorf("a name without a value: %v", warnings)
	}
}

// TestPodsOfAnotherClusterAskForCertificatesAtIstiod: the Service of the ca means nothing there.
func TestPodsOfAnotherClusterAskForCertificatesAtIstiod(t *testing.T) {
	const ca, istiod, theirs = "ca.istio-system.svc:15012", "istiod.istio-system.svc:15012", "ca.example.com:15012"
	const mesh = "defaultConfig: {proxyMetadata: {CA_ADDR: '" + ca + "', OTHER: x}}"
	for name, c := range map[string]struct{ mesh, own, address, annotation, path, want string }{
		"another cluster":                   {mesh, "west", "", "", "/inject/cluster/east/net/n", istiod},
		"the own cluster":                   {mesh, "west", "", "", "/inject/cluster/west/net/n", ca},
		"the own cluster without a name":    {mesh, "", "", "", "/inject/cluster/Kubernetes", ca},
		"no cluster":                        {mesh, "west", "", "", "/inject", ca},
		"no address in the mesh's settings": {"", "west", "", "", "/inject/cluster/east/net/n", istiod},
		"an address for all clusters": {"defaultConfig: {proxyMetadata: {CA_ADDR: '" + theirs + "'}}", "west", theirs, "",
			"/inject/cluster/east/net/n", theirs},
		"an address of the settings": {"defaultConfig: {proxyMetadata: {CA_ADDR: '" + theirs + "'}}", "west", "", "",
			"/inject/cluster/east/net/n", theirs},
		"another control plane": {"defaultConfig: {discoveryAddress: 'cp.example.com:15012', proxyMetadata: {CA_ADDR: '" + ca + "'}}",
			"west", "", "", "/inject/cluster/east/net/n", "cp.example.com:15012"},
		"an address of the Pod": {mesh, "west", "", "proxy.istio.io/config: 'proxyMetadata: {CA_ADDR: " + theirs + "}'",
			"/inject/cluster/east/net/n", theirs},
	} {
		t.Run(name, func(t *testing.T) {
			config := configOf(t, c.mesh, `{clusterName: ""}`, "{clusterName: '"+c.own+"'}\n  caAddress: '"+c.address+"'")
			env, _ := inject.EnvOfPath(c.path)
			for range 2 { // the mesh's settings stay as they are
				p := proxyOf(t, injected(t, config, inject.Request{Pod: podOf(t, c.annotation, app), Env: env, LocalCA: ca}).Pod)
				if got := envOf(p, "CA_ADDR"); got != c.want || c.mesh == mesh && envOf(p, "OTHER") != "x" {
					t.Errorf("CA_ADDR is %q, want %q: %v", got, c.want, p.Env)
				}
			}
			local := proxyOf(t, injected(t, config, inject.Request{Pod: podOf(t, "", app), LocalCA: ca}).Pod)
			if got := envOf(local, "CA_ADDR"); got == istiod {
				t.Errorf("a Pod of the own cluster has CA_ADDR %q", got)
			}
		})
	}
}

func TestUsersOfOpenShift(t *testing.T) {
	for ranges, want := range map[string][2]int64{"1000/10": {1009, 1009}, "5-9": {9, 9}, "": {1337, 1337}, "x": {1337, 1337}} {
		ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{"openshift.io/sa.scc.uid-range": ranges}}}
		p := proxyOf(t, injected(t, configOf(t, ""), inject.Request{Pod: podOf(t, "", app), Namespace: ns}).Pod)
		if *p.SecurityContext.RunAsUser != want[0] || *p.SecurityContext.RunAsGroup != want[1] {
			t.Errorf("%q: user %d group %d, want %v", ranges, *p.SecurityContext.RunAsUser, *p.SecurityContext.RunAsGroup, want)
		}
	}
	ns := &corev1.Namespace{
		ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{"openshift.io/sa.scc.uid-range": "1000/10",
			"openshift.io/sa.scc.supplemental-groups": "20/5,30/5"}}}
	same := `containers: [{name: web, image: a, securityContext: {runAsUser: 1000}}, {name: istio-proxy, image: auto, securityContext: {runAsUser: 1000}}]`
	p := proxyOf(t, injected(t, configOf(t, ""), inject.Request{Pod: podOf(t, "", same), Namespace: ns}).Pod)
	if *p.SecurityContext.RunAsUser != 1009 || *p.SecurityContext.RunAsGroup != 24 {
		t.Errorf("the proxy has the application's user: %+v", p.SecurityContext)
	}
}

func TestOwners(t *testing.T) {
	yes := true
	for name, c := range map[string]struct{ kind, owner, label, want string }{
		"a Deployment":       {"ReplicaSet", "web-5f7", "pod-template-hash", "Deployment web"},
		"a Rollout":          {"ReplicaSet", "web-5f7", "rollouts-pod-template-hash", "Rollout web"},
		"a ReplicaSet":       {"ReplicaSet", "web-5f7", "", "ReplicaSet web-5f7"},
		"a CronJob":          {"Job", "tick-28912345", "", "CronJob tick"},
		"a Job":              {"Job", "once-1", "", "Job once-1"},
		"a DeploymentConfig": {"ReplicationController", "dc-1", "deploymentconfig", "DeploymentConfig 5f7"},
	} {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{GenerateName: "web-", Labels: map[string]string{c.label: "5f7"},
			OwnerReferences: []metav1.OwnerReference{{Kind: c.kind, Name: c.owner, Controller: &yes}}}}
		if o := inject.OwnerOf(pod); o.Type.Kind+" "+o.Name.Name != c.want {
			t.Errorf("%s: %s %s, want %s", name, o.Type.Kind, o.Name.Name, c.want)
		}
	}
	if o := inject.OwnerOf(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "a"}}); o.Type.Kind != "Pod" || o.Name.Name != "a" {
		t.Errorf("a Pod alone: %+v", o)
	}
}

func TestImages(t *testing.T) {
	for name, c := range map[string]struct{ tag, variant, annotations, want string }{
		"the tag":                         {"v1", "", "", "v1"},
		"a variant of the values":         {"v1-debug", "distroless", "", "v1-distroless"},
		"the annotation wins":             {"v1-distroless", "distroless", "sidecar.istio.io/proxyImageType: default", "v1"},
		"a number":                        {"1.1", "", "", "1.1"},
		"the ProxyConfig over the values": {"v1", "debug", `proxy.istio.io/config: "image: {imageType: distroless}"`, "v1-distroless"},
	} {
		t.Run(name, func(t *testing.T) {
			config := configOf(t, "", "tag: v1", "tag: "+c.tag+"\n  variant: \""+c.variant+`"`)
			if got := proxyOf(t, injected(t, config, inject.Request{Pod: podOf(t, c.annotations, app)}).Pod).Image; got != "example.com/mesh/proxy:"+
				c.want {
				t.Errorf("image %s, want the tag %s", got, c.want)
			}
		})
	}
}

func TestBadConfigurationsAreRefused(t *testing.T) {
	mesh, err := inject.ParseMesh(nil)
	if err != nil {
		t.Fatal(err)
	}
	for want, c := range map[string][2]string{
		"policy of the injection configuration": {"templates: {sidecar: ''}", "global: {}"},
		"neverInjectSelector[0]": {"policy: enabled\nneverInjectSelector: [{matchExpressions: [{key: a, operator: X}]}]",
			"global: {}"},
		`template "a"`:                          {"policy: enabled\ntemplates: {a: '{{ nobody }}'}", "global: {}"},
		"values of the injection configuration": {"policy: enabled", "global: [a]"},
		"they are empty":                        {"policy: enabled", ""},
		"config of the injection configuration": {"policy: [", "global: {}"},
	} {
		if _, err := inject.ParseConfig([]byte(c[0]), []byte(c[1]), mesh, ""); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v, want one about %s", c, err, want)
		}
	}
	for text, want := range map[string]string{"a": "not an object", "defaultConfig: {statusPort: 0}": "statusPort",
		"proxyListenPort: x": "proxyListenPort"} {
		if _, err := inject.ParseMesh([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("mesh %q: %v, want one about %s", text, err, want)
		}
	}
}

func TestTemplatesBoundsAndExtras(t *testing.T) {
	config := configOf(t, "")
	pod := injected(t, config, inject.Request{Pod: podOf(t, "inject.istio.io/templates: both", app)}).Pod
	if pod.Labels["extra"] != "default" || pod.Annotations["example.com/injected"] != "yes" {
		t.Errorf("alias, injectedAnnotations: %v", pod.ObjectMeta)
	}
	large := configOf(t, "", "just words", `{{ range until 100000 }}{{ repeat 100 "x" }}{{ end }}`)
	if _, err := large.Inject(inject.Request{Pod: podOf(t, "inject.istio.io/templates: text", app)}); err == nil ||
		!strings.Contains(err.Error(), "renders to more than") {
		t.Errorf("ten megabytes: %v", err)
	}
	for _, endless := range []string{
		"{{ range 1000000000000 }}{{ end }}", "{{ range 1000000 }}{{ if true }}{{ range 1000000 }}{{ end }}{{ end }}{{ end }}",
		`{{ define "a" }}{{ if lt (len .) 40 }}{{ template "a" (print . "x") }}{{ template "a" (print . "x") }}{{ end }}{{ end }}{{ template "a" "" }}`,
	} {
		config := configOf(t, "", "just words", endless)
		if _, err := config.Inject(inject.Request{Pod: podOf(t, "inject.istio.io/templates: text", app)}); err == nil ||
			!strings.Contains(err.Error(), "does not end") {
			t.Errorf("%s: %v", endless, err)
		}
	}
	gateway := podOf(t, "inject.istio.io/templates: gateway", `containers: [{name: istio-proxy, image: auto}]`)
	before := maps.Clone(gateway.Annotations)
	if out := injected(t, config, inject.Request{Pod: gateway}).Pod; out.Spec.Containers[0].Image != "example.com/mesh/proxy:v1" ||
		out.Spec.SecurityContext == nil || len(before) != 1 {
		t.Errorf("gateway: %+v", out.Spec)
	}
}

// Who may make Pods does not decide how long the injector is busy with one.
func TestPodsBeyondTheBoundsAreRefused(t *testing.T) {
	config := configOf(t, "")
	annotated := func(name, value string) func(*corev1.Pod) {
		return func(p *corev1.Pod) { p.Annotations = map[string]string{name: value} }
	}
	many := func(text string, n int) string { return strings.TrimSuffix(strings.Repeat(text+",", n), ",") }
	for want, change := range map[string]func(*corev1.Pod){
		"17 templates":     annotated("inject.istio.io/templates", many("sidecar", 17)),
		"300000 bytes":     annotated("a", strings.Repeat("x", 299999)),
		"257 containers":   func(p *corev1.Pod) { p.Spec.Containers = make([]corev1.Container, 257) },
		"1025 volumes":     func(p *corev1.Pod) { p.Spec.Volumes = make([]corev1.Volume, 1025) },
		"1025 variables":   func(p *corev1.Pod) { p.Spec.Containers[0].Env = make([]corev1.EnvVar, 1025) },
		"it has 1000 cont": annotated("proxy.istio.io/overrides", `{"containers":[`+many(`{"name":"x"}`, 1000)+`]}`),
		"it has 2000 cont": annotated("sidecar.istio.io/status", `{"containers":[`+many(`"x"`, 2000)+`]}`),
	} {
		pod := podOf(t, "", app)
		change(pod)
		if _, err := config.Inject(inject.Request{Pod: pod}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want one about %s", err, want)
		}
	}
}

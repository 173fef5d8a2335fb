package plan

import (
	"encoding/json"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	networkingv1 "istio.io/client-go/pkg/apis/networking/v1"
	corev1 "k8s.io/api/core/v1"

	"fairlead.dev/services/installer/internal/local/meshfile"
	"fairlead.dev/services/installer/internal/local/programs"
	"fairlead.dev/services/installer/internal/local/rundir"
	"fairlead.dev/services/installer/internal/objectfile"
)

func load(t *testing.T, content string) *meshfile.Mesh {
	t.Helper()
	path := filepath.Join(t.TempDir(), "mesh.yaml")
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	m, err := meshfile.Load([]string{path})
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func options() Options {
	next := uint16(20000)
	return Options{
		Layout: rundir.NewLayout("/run/mesh", ""), Range: netip.MustParsePrefix("127.66.0.0/16"),
		XDSServers: 2, TrustDomain: "cluster.local", ConfigPaths: []string{"/mesh.yaml"}, LogLevel: "info", Drain: 5 * time.Second,
		Find:     func(name string) (string, error) { return "/bin/" + name, nil },
		Envoy:    "/bin/envoy",
		FreePort: func() (uint16, error) { next++; return next, nil },
		BaseEnv:  []string{"PATH=/bin"},
	}
}

func make1(t *testing.T, content string) *Plan {
	t.Helper()
	p, err := New(load(t, content), options())
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// web is a Deployment; tests replace parts of it.
const web = `apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: shop}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata:
      labels: {app: web}
      annotations: {note: x}
    spec:
      serviceAccountName: web-sa
      containers:
      - name: web
        image: web:1
        command: [web, --port, $(PORT)]
        args: [--name=$(POD_NAME), $$(PORT), $(NONE)]
        env:
        - {name: COLOR, value: red-$(POD_IP)}
        - name: LABEL
          valueFrom: {fieldRef: {fieldPath: "metadata.labels['app']"}}
        ports:
        - {name: http-web, containerPort: 9080}
        readinessProbe:
          httpGet: {path: healthz, port: http-web, httpHeaders: [{name: Host, value: web.example}]}
          periodSeconds: 3
`

const webService = `---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec:
  selector: {app: web}
  ports:
  - {name: http, port: 80, targetPort: http-web}
  - {name: udp, port: 53, protocol: UDP}
`

func TestServices(t *testing.T) {
	p := make1(t, "")
	var names []string
	for _, s := range p.Services {
		names = append(names, s.Name+" "+s.GRPC.String())
	}
	want := []string{"ca 127.66.0.11:15012", "config-watcher 127.66.0.10:15060", "xds-server-0 127.66.0.12:15012",
		"xds-server-1 127.66.0.13:15012"}
	if !slices.Equal(names, want) {
		t.Errorf("got %v, want %v", names, want)
	}
	if cw := p.ConfigWatcher(); !slices.Contains(cw.Args, "/mesh.yaml") {
		t.Errorf("config-watcher does not read the mesh file: %v", cw.Args)
	}
	for _, s := range p.Services {
		// Every service gets the key set's file, and a token file of its own.
		if !slices.Contains(s.Args, "/run/mesh/issuer/jwks.json") || s.TokenFile != "/run/mesh/tokens/"+s.Name {
			t.Errorf("%s: %v, token %s", s.Name, s.Args, s.TokenFile)
		}
		// Each xds-server gets the addresses of all, for balancing.
		if s.Program == "xds-server" && !slices.Contains(s.Args, "127.66.0.12:15012,127.66.0.13:15012") {
			t.Errorf("%s does not know its peers: %v", s.Name, s.Args)
		}
	}
}

// TestNamesThatAgentsVerify: Istio's agents compare what they dial with the names and addresses of a certificate.
func TestNamesThatAgentsVerify(t *testing.T) {
	args := strings.Join(make1(t, web).Services[0].Args, " ")
	for _, want := range []string{
		"--dns-names istio-system/xds-server=istiod.istio-system.svc,istiod.istio-system",
		"--ip-addresses istio-system/xds-server=127.66.0.12,127.66.0.13",
		"--dns-names istio-system/ca=ca.istio-system.svc,ca.istio-system",
		"--ip-addresses istio-system/ca=127.66.0.11",
	} {
		if !strings.Contains(args, want) {
			t.Errorf("ca is started with %s, want %s", args, want)
		}
	}
}

func TestProxylessPod(t *testing.T) {
	p := make1(t, strings.Replace(web, "{note: x}", "{inject.istio.io/templates: grpc-agent}", 1)+webService)
	pod := p.Pods[0]
	const bootstrap = "GRPC_XDS_BOOTSTRAP=/run/mesh/pods/web-0.shop/grpc-bootstrap.json"
	if pod.Kind != Proxyless || pod.Sidecar != nil || pod.Labels[tlsModeLabel] != "" {
		t.Errorf("kind %s, Sidecar %s, labels %v", pod.Kind, pod.Sidecar, pod.Labels)
	}
	if listen := pod.Containers[0].Ports[0].Listen; listen != netip.AddrPortFrom(pod.IP, 9080) {
		t.Errorf("listens on %s", listen)
	}
	for name, env := range map[string][]string{"program": pod.Containers[0].Env, "agent": pod.Agent.Env} {
		if !slices.Contains(env, bootstrap) {
			t.Errorf("%s: %v", name, env)
		}
	}
	for _, want := range []string{"ISTIO_META_GENERATOR=grpc", "DISABLE_ENVOY=true"} {
		if !slices.Contains(pod.Agent.Env, want) {
			t.Errorf("agent: no %s in %v", want, pod.Agent.Env)
		}
	}
	if pod.Agent.Ready != pod.Agent.Status || pod.Agent.AdminSocket() != "" ||
		slices.Contains(pod.Listens, netip.AddrPortFrom(pod.IP, ReadyPort)) {
		t.Errorf("agent %+v, addresses %v", pod.Agent, pod.Listens)
	}
}

func TestSidecarPod(t *testing.T) {
	p := make1(t, web+webService)
	if len(p.Pods) != 2 {
		t.Fatalf("%d Pods", len(p.Pods))
	}
	pod := p.Pods[1]
	if pod.ID() != "web-1.shop" || pod.IP.String() != "127.66.1.2" || pod.Kind != Sidecar || pod.ServiceAccount != "web-sa" {
		t.Errorf("pod %s at %s, %s, %s", pod.ID(), pod.IP, pod.Kind, pod.ServiceAccount)
	}
	if pod.NodeID() != "sidecar~127.66.1.2~web-1.shop~shop.svc.cluster.local" {
		t.Errorf("node id %s", pod.NodeID())
	}
	c := pod.Containers[0]
	if got, want := strings.Join(c.Args, " "), "--port 20002 --name=web-1 $(PORT) $(NONE)"; got != want {
		t.Errorf("args %q, want %q", got, want)
	}
	for _, want := range []string{
		"PATH=/bin", "PORT=20002", "PORT_9080=20002", "PORT_HTTP_WEB=20002", "HOST=127.0.0.1", "COLOR=red-127.66.1.2", "LABEL=web",
		"HTTP_PROXY=http://127.66.1.2:15080", "http_proxy=http://127.66.1.2:15080", "NO_PROXY=", "POD_NAME=web-1", "POD_NAMESPACE=shop",
		"SERVICE_ACCOUNT=web-sa",
	} {
		if !slices.Contains(c.Env, want) {
			t.Errorf("env lacks %s: %v", want, c.Env)
		}
	}
	if c.Probe.URL != "http://127.0.0.1:20002/healthz" || c.Probe.Host != "web.example" || c.Probe.Period != 3*time.Second ||
		c.Probe.FailureThreshold != 3 {
		t.Errorf("probe %+v", c.Probe)
	}
	if !slices.Contains(pod.Listens, netip.MustParseAddrPort("127.66.1.2:9080")) ||
		!slices.Contains(pod.Listens, netip.MustParseAddrPort("127.66.1.2:15021")) {
		t.Errorf("listens on %v", pod.Listens)
	}
	for _, want := range []string{"POD_NAME=web-1", "INSTANCE_IP=127.66.1.2", "ISTIO_META_INTERCEPTION_MODE=NONE",
		"ISTIO_META_APP_CONTAINERS=web",
		`ISTIO_METAJSON_LABELS={"app":"web","fairlead.dev/instance":"web-1","security.istio.io/tlsMode":"istio"}`} {
		if !slices.Contains(pod.Agent.Env, want) {
			t.Errorf("agent's env lacks %s: %v", want, pod.Agent.Env)
		}
	}
	if !slices.Contains(pod.Agent.Args, "127.66.0.12:15012,127.66.0.13:15012") {
		t.Errorf("agent's args %v", pod.Agent.Args)
	}
}

func TestGeneratedSidecar(t *testing.T) {
	p := make1(t, web+webService)
	var s networkingv1.Sidecar
	if err := json.Unmarshal(p.Pods[0].Sidecar, &s); err != nil {
		t.Fatal(err)
	}
	if s.Namespace != "shop" || s.Spec.WorkloadSelector.Labels[InstanceLabel] != "web-0" {
		t.Errorf("%s/%s selects %v", s.Namespace, s.Name, s.Spec.WorkloadSelector)
	}
	in := s.Spec.Ingress[0]
	if len(s.Spec.Ingress) != 1 || in.Port.Number != 9080 || in.Port.Protocol != "HTTP" || in.Bind != "127.66.1.1" ||
		in.DefaultEndpoint != "127.0.0.1:20001" || in.CaptureMode.String() != "NONE" {
		t.Errorf("ingress %v", s.Spec.Ingress)
	}
	out := s.Spec.Egress[0]
	if out.Port.Number != 15080 || out.Port.Protocol != "HTTP_PROXY" || out.Bind != "127.66.1.1" || !slices.Equal(out.Hosts, []string{"*/*"}) {
		t.Errorf("egress %v", s.Spec.Egress)
	}
}

func TestNamespaceSidecarNarrowsEgress(t *testing.T) {
	const narrow = `---
apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {name: default, namespace: shop}
spec: {egress: [{hosts: ["./*", "istio-system/*"]}]}
`
	p := make1(t, web+webService+narrow)
	var s networkingv1.Sidecar
	if err := json.Unmarshal(p.Pods[0].Sidecar, &s); err != nil {
		t.Fatal(err)
	}
	if got := s.Spec.Egress[0].Hosts; !slices.Equal(got, []string{"./*", "istio-system/*"}) {
		t.Errorf("hosts %v", got)
	}
}

func TestUserSidecarIsLeftInCharge(t *testing.T) {
	const own = `---
apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {name: own, namespace: shop}
spec:
  workloadSelector: {labels: {app: web}}
  ingress:
  - {port: {number: 9080, protocol: HTTP, name: http}, defaultEndpoint: "127.0.0.1:7777"}
  egress:
  - {port: {number: 3128, protocol: HTTP_PROXY, name: proxy}, bind: 127.0.0.1, captureMode: NONE, hosts: ["*/*"]}
`
	p := make1(t, strings.Replace(web, "replicas: 2", "replicas: 1", 1)+webService+own)
	pod := p.Pods[0]
	if pod.Sidecar != nil {
		t.Errorf("a Sidecar was generated: %s", pod.Sidecar)
	}
	if env := pod.Containers[0].Env; !slices.Contains(env, "PORT=7777") || !slices.Contains(env, "HTTP_PROXY=http://127.0.0.1:3128") {
		t.Errorf("env %v", env)
	}
}

func TestPlainPod(t *testing.T) {
	for name, content := range map[string]string{
		"label": strings.Replace(web, "labels: {app: web}\n      ann", "labels: {app: web, sidecar.istio.io/inject: \"false\"}\n      ann",
			1),
		"annotation": strings.Replace(web, "{note: x}", "{sidecar.istio.io/inject: \"false\"}", 1),
		"namespace":  web + "---\napiVersion: v1\nkind: Namespace\nmetadata: {name: shop, labels: {istio-injection: disabled}}\n",
	} {
		t.Run(name, func(t *testing.T) {
			p := make1(t, content+webService)
			pod := p.Pods[0]
			if pod.Kind != Plain || pod.Agent != nil || pod.Sidecar != nil {
				t.Fatalf("kind %s, agent %v, sidecar %s", pod.Kind, pod.Agent, pod.Sidecar)
			}
			env := pod.Containers[0].Env
			if !slices.Contains(env, "HOST=127.66.1.1") || !slices.Contains(env, "PORT=9080") {
				t.Errorf("env %v", env)
			}
			if slices.ContainsFunc(env, func(s string) bool { return strings.HasPrefix(s, "HTTP_PROXY=") }) {
				t.Errorf("a proxy in the env of a Pod without one: %v", env)
			}
			if pod.Containers[0].Probe.URL != "http://127.66.1.1:9080/healthz" {
				t.Errorf("probe %+v", pod.Containers[0].Probe)
			}
		})
	}
}

const gateway = `apiVersion: apps/v1
kind: Deployment
metadata: {name: gw, namespace: istio-system}
spec:
  selector: {matchLabels: {istio: gw}}
  template:
    metadata:
      labels: {istio: gw}
      annotations: {inject.istio.io/templates: gateway, proxy.istio.io/config: "concurrency: 3"}
    spec:
      containers:
      - name: istio-proxy
        image: auto
        env: [{name: ISTIO_META_ROUTER_MODE, value: sni-dnat}]
---
apiVersion: v1
kind: Service
metadata: {name: gw, namespace: istio-system}
spec:
  selector: {istio: gw}
  ports: [{name: http, port: 80, targetPort: 8080}, {name: https, port: 443}]
---
apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: shop, namespace: shop}
spec:
  selector: {istio: gw}
  servers:
  - {port: {number: 80, name: http, protocol: HTTP}, hosts: [shop.example]}
  - {port: {number: 443, name: https, protocol: HTTPS}, hosts: ["*"]}
`

func TestGatewayPod(t *testing.T) {
	p := make1(t, gateway)
	pod := p.Pods[0]
	if pod.Kind != Gateway || pod.Sidecar != nil || len(pod.Containers) != 0 || !strings.HasPrefix(pod.NodeID(), "router~") ||
		pod.ServiceAccount != "default" {
		t.Errorf("pod %+v", pod)
	}
	if pod.Agent.Args[1] != "router" || !slices.Contains(pod.Agent.Env, "ISTIO_META_ROUTER_MODE=sni-dnat") ||
		!slices.Contains(pod.Agent.Env, "PROXY_CONFIG=concurrency: 3\n") {
		t.Errorf("agent %v %v", pod.Agent.Args, pod.Agent.Env)
	}
	want := []URL{
		{Pod: "gw-0.istio-system", URL: "http://127.66.1.1:8080/", Hosts: []string{"shop.example"}},
		{Pod: "gw-0.istio-system", URL: "https://127.66.1.1:443/", Hosts: []string{"*"}},
	}
	if len(p.URLs) != 2 || p.URLs[0].URL != want[0].URL || p.URLs[1].URL != want[1].URL || p.URLs[0].Hosts[0] != "shop.example" {
		t.Errorf("URLs %v", p.URLs)
	}
	if len(p.Warnings) != 1 || !strings.Contains(p.Warnings[0], "Gateway shop/shop: spec.servers[1].port: 443") {
		t.Errorf("warnings %v", p.Warnings)
	}
}

const proxyConfigs = `---
apiVersion: networking.istio.io/v1beta1
kind: ProxyConfig
metadata: {name: gw, namespace: istio-system}
spec:
  selector: {matchLabels: {istio: gw}}
  concurrency: 5
  environmentVariables: {MINIMUM_DRAIN_DURATION: 7s, COLOUR: green}
`

func TestProxyConfigReachesTheAgent(t *testing.T) {
	a := make1(t, gateway+proxyConfigs).Pods[0].Agent
	// The flag and the variable win over the annotation, which asks for 3.
	if !strings.HasSuffix(strings.Join(a.Args, " "), " --concurrency 5") {
		t.Errorf("arguments %v", a.Args)
	}
	for _, want := range []string{"COLOUR=green", "MINIMUM_DRAIN_DURATION=7s", "ISTIO_META_ROUTER_MODE=sni-dnat",
		"PROXY_CONFIG=concurrency: 5\nproxyMetadata:\n  COLOUR: green\n  MINIMUM_DRAIN_DURATION: 7s\n"} {
		if !slices.Contains(a.Env, want) {
			t.Errorf("environment %q lacks %q", a.Env, want)
		}
	}
}

func TestRefuses(t *testing.T) {
	replace := func(old, with string) string { return strings.Replace(web, old, with, 1) }
	for name, tc := range map[string]struct{ content, field, remedy string }{
		"no command": {replace("command: [web, --port, $(PORT)]\n", "\n"), "spec.template.spec.containers[0].command", "--bin-dir"},
		"volumes": {replace("      containers:", "      volumes: [{name: v}]\n      containers:"), "spec.template.spec.volumes",
			"read the files"},
		"init containers": {replace("      containers:", "      initContainers: [{name: v}]\n      containers:"),
			"spec.template.spec.initContainers", "before"},
		"secret env": {replace("fieldRef: {fieldPath: \"metadata.labels['app']\"}", "secretKeyRef: {name: s, key: k}"),
			"spec.template.spec.containers[0].env[1].valueFrom", "write the value"},
		"unknown field": {replace("metadata.labels['app']", "metadata.owner"), "containers[0].env[1].valueFrom.fieldRef.fieldPath",
			"status.podIP"},
		"exec probe": {replace("httpGet: {path: healthz, port: http-web, httpHeaders: [{name: Host, value: web.example}]}",
			"exec: {command: [x]}"), "containers[0].readinessProbe", "one of these"},
		"probe port":     {replace("port: http-web", "port: nothing"), "containers[0].readinessProbe.httpGet.port", "name one"},
		"selector":       {replace("matchLabels: {app: web}", "matchLabels: {app: other}"), "spec.template.metadata.labels", "add it"},
		"app in gateway": {replace("{note: x}", "{inject.istio.io/templates: gateway}"), "spec.template.spec.containers[0]", "istio-proxy"},
		"loaded code": {replace("{note: x}", `{proxy.istio.io/config: "proxyMetadata: {LD_PRELOAD: /tmp/a.so}"}`), "proxyMetadata.LD_PRELOAD",
			"remove it"},
		"written file": {replace("{note: x}", `{proxy.istio.io/config: "proxyMetadata: {OUTPUT_CERTS: /home}"}`), "proxyMetadata.OUTPUT_CERTS",
			"remove it"},
		"run program": {replace("{note: x}", `{proxy.istio.io/config: "readinessProbe: {exec: {command: [reboot]}}"}`), "readinessProbe.exec",
			"probe by httpGet"},
		"negative": {replace("replicas: 2", "replicas: -1"), "spec.replicas", "0 or more"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := New(load(t, tc.content), options())
			var bad *objectfile.Error
			if !errors.As(err, &bad) {
				t.Fatalf("error %v", err)
			}
			if bad.Object != "Deployment shop/web" || bad.Line != 1 || !strings.HasSuffix(bad.Field, tc.field) ||
				!strings.Contains(bad.Remedy, tc.remedy) {
				t.Errorf("error %+v", bad)
			}
		})
	}
}

func TestMissingProgramNamesTheField(t *testing.T) {
	o := options()
	o.Find = func(name string) (string, error) {
		if name == "web" {
			return "", errors.New("program web was not found")
		}
		return "/bin/" + name, nil
	}
	_, err := New(load(t, web), o)
	if err == nil || !strings.Contains(err.Error(),
		"Deployment shop/web: spec.template.spec.containers[0].command[0]: program web was not found; build it") {
		t.Errorf("error %v", err)
	}
	o.Find = func(name string) (string, error) {
		if name == "web" {
			return "", &programs.NotFoundError{Program: name, Searched: []string{"/bin"}, Remedy: "run make"}
		}
		return "/bin/" + name, nil
	}
	if _, err := New(load(t, web), o); err == nil ||
		!strings.Contains(err.Error(), "program web was not found in /bin; build it into --bin-dir") {
		t.Errorf("two remedies: %v", err)
	}
}

func TestAddresses(t *testing.T) {
	for text, want := range map[string]string{
		"10.0.0.0/16":   "not within 127.0.0.0/8",
		"127.66.0.0/24": "too small",
	} {
		if _, err := newAddresses(netip.MustParsePrefix(text), 2); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", text, err)
		}
	}
	a, err := newAddresses(netip.MustParsePrefix("127.66.4.0/22"), 2)
	if err != nil {
		t.Fatal(err)
	}
	seen := map[netip.Addr]bool{}
	for {
		addr, err := a.pod()
		if err != nil {
			break
		}
		if seen[addr] || !a.prefix.Contains(addr) {
			t.Fatalf("%s twice, or outside", addr)
		}
		seen[addr] = true
	}
	if len(seen) != 1024-256-2 {
		t.Errorf("%d addresses", len(seen))
	}
}

func TestManifest(t *testing.T) {
	p := make1(t, web)
	at := time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC)
	m := p.Pods[0].Manifest(true, at)
	if m.Kind != "Pod" || m.Namespace != "shop" || m.Spec.ServiceAccountName != "web-sa" || m.Labels[InstanceLabel] != "web-0" ||
		m.Status.PodIP != "127.66.1.1" {
		t.Errorf("manifest %+v", m)
	}
	if c := m.Status.Conditions[0]; c.Type != corev1.PodReady || c.Status != corev1.ConditionTrue {
		t.Errorf("conditions %+v", m.Status.Conditions)
	}
	if c := p.Pods[0].Status(false, at).Conditions[0]; c.Status != corev1.ConditionFalse {
		t.Errorf("not ready: %+v", c)
	}
}

func TestExpand(t *testing.T) {
	vars := map[string]string{"A": "1"}
	for in, want := range map[string]string{
		"$(A)": "1", "x$(A)y$(A)": "x1y1", "$$(A)": "$(A)", "$(B)": "$(B)", "$(": "$(", "$": "$", "a$b": "a$b", "": "", "$$": "$",
	} {
		if got := expand(in, vars); got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
}

package config

import (
	"fmt"
	"io/fs"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"

	"fairlead.dev/pkg/meshdefaults"
)

// host is a machine with the given environment and files.
func host(files map[string]string, env ...string) Host {
	return Host{
		Environ: env,
		ReadFile: func(name string) ([]byte, error) {
			if s, ok := files[name]; ok {
				return []byte(s), nil
			}
			return nil, fs.ErrNotExist
		},
		Addresses: func() ([]netip.Addr, error) {
			return []netip.Addr{netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("fe80::1"), netip.MustParseAddr("10.1.2.3")}, nil
		},
		NumCPU:    8,
		OpenFiles: 1000,
	}
}

// flags parses a command line as package command does.
func flags(t *testing.T, args ...string) Flags {
	t.Helper()
	var f Flags
	set := pflag.NewFlagSet("proxy", pflag.ContinueOnError)
	f.Register(set)
	if err := set.Parse(args); err != nil {
		t.Fatal(err)
	}
	return f
}

var pod = []string{"POD_NAME=web-0", "POD_NAMESPACE=shop", "INSTANCE_IP=10.0.0.7"}

func parse(t *testing.T, f Flags, h Host) *Config {
	t.Helper()
	c, err := Parse("sidecar", f, h)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestDefaultsAreIstios(t *testing.T) {
	c := parse(t, flags(t), host(nil, pod...))
	id, err := c.Identity()
	if err != nil {
		t.Fatal(err)
	}
	got := []any{
		id.String(), c.DNSDomain, c.StateDir, c.TokenFile, c.RootCertFile, c.CAAddress, c.DiscoveryAddresses,
		c.DiscoveryIDs[0].String(), c.CAIDs[0].String(), c.SecretTTL, c.DeltaXDS, c.Concurrency, c.EnvoyBinary,
		c.StatusAddress.String(), c.ReadyAddress.String(), c.StatsAddress.String(), c.Drain, c.MaxDownstreamConnections,
	}
	want := []any{
		"spiffe://cluster.local/ns/shop/sa/default", "shop.svc.cluster.local", "./etc/istio/proxy",
		"./var/run/secrets/tokens/istio-token", "./var/run/secrets/istio/root-cert.pem",
		"ca.istio-system.svc:15012", []string{meshdefaults.ProxyConfig().GetDiscoveryAddress()},
		"spiffe://cluster.local/ns/istio-system/sa/xds-server", "spiffe://cluster.local/ns/istio-system/sa/ca",
		24 * time.Hour, true, uint32(1), "/usr/local/bin/envoy",
		"0.0.0.0:15020", "0.0.0.0:15021", "0.0.0.0:15090",
		Drain{Envoy: 45 * time.Second, Termination: 5 * time.Second, Minimum: 5 * time.Second}, uint64(500),
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

func TestSourcesOfSettings(t *testing.T) {
	for _, tc := range []struct {
		name  string
		args  []string
		env   []string
		files map[string]string
		get   func(*Config) any
		want  any
	}{
		{"discovery from ProxyConfig", nil, []string{"PROXY_CONFIG=discoveryAddress: a:1, b:2"}, nil,
			func(c *Config) any { return c.DiscoveryAddresses }, []string{"a:1", "b:2"}},
		{"ids of the namespaces of Services", nil,
			[]string{"PROXY_CONFIG=discoveryAddress: 'istiod-canary.mesh.svc:15012, xds.mesh.svc.cluster.local:1, 10.0.0.1:2'",
				"CA_ADDR=ca.trust.svc:15012"}, nil,
			func(c *Config) any { return fmt.Sprint(c.DiscoveryIDs, c.CAIDs) },
			"[spiffe://cluster.local/ns/mesh/sa/xds-server spiffe://cluster.local/ns/istio-system/sa/xds-server] " +
				"[spiffe://cluster.local/ns/trust/sa/ca]"},
		{"at its own address the control plane may forward to the ca", nil,
			[]string{"PROXY_CONFIG=discoveryAddress: 'a:1, istiod-blue.mesh.svc:15012'", "CA_ADDR=istiod-blue.mesh.svc:15012"}, nil,
			func(c *Config) any { return fmt.Sprint(c.CAIDs) },
			"[spiffe://cluster.local/ns/mesh/sa/ca spiffe://cluster.local/ns/istio-system/sa/xds-server " +
				"spiffe://cluster.local/ns/mesh/sa/xds-server]"},
		{"ids of the ca that are said", []string{"--ca-id", "spiffe://td/ns/n/sa/a"},
			[]string{"PROXY_CONFIG=discoveryAddress: 'a:1'", "CA_ADDR=a:1"}, nil,
			func(c *Config) any { return fmt.Sprint(c.CAIDs) }, "[spiffe://td/ns/n/sa/a]"},
		{"flag before ProxyConfig", []string{"--discovery-address", "c:3,d:4"}, []string{"PROXY_CONFIG=discoveryAddress: a:1"}, nil,
			func(c *Config) any { return c.DiscoveryAddresses }, []string{"c:3", "d:4"}},
		{"annotation before PROXY_CONFIG", nil, []string{"PROXY_CONFIG={concurrency: 2, statusPort: 16020}"},
			map[string]string{"etc/istio/pod/annotations": `proxy.istio.io/config="concurrency: 4\n"` + "\n"},
			func(c *Config) any { return []any{c.Concurrency, c.StatusAddress.Port()} }, []any{uint32(4), uint16(16020)}},
		{"environment before proxyMetadata", nil,
			[]string{`PROXY_CONFIG={"proxyMetadata": {"ISTIO_DELTA_XDS": "false", "SECRET_TTL": "2h", "ISTIO_META_NETWORK": "n1"}}`,
				"SECRET_TTL=1h"}, nil,
			func(c *Config) any { return []any{c.DeltaXDS, c.SecretTTL, c.Meta["NETWORK"]} }, []any{false, time.Hour, "n1"}},
		{"concurrency 0 is every CPU", []string{"--concurrency", "0"}, nil, nil,
			func(c *Config) any { return c.Concurrency }, uint32(8)},
		{"concurrency is the CPU limit that injection passes", nil, []string{"ISTIO_CPU_LIMIT=3"}, nil,
			func(c *Config) any { return c.Concurrency }, uint32(3)},
		{"concurrency of ProxyConfig before the CPU limit", nil, []string{"ISTIO_CPU_LIMIT=3", "PROXY_CONFIG=concurrency: 0"}, nil,
			func(c *Config) any { return c.Concurrency }, uint32(8)},
		{"bound to one address", []string{"--bind", "127.66.1.1"}, nil, nil,
			func(c *Config) any {
				return []string{c.StatusAddress.String(), c.ReadyAddress.String(), c.StatsAddress.String()}
			},
			[]string{"127.66.1.1:15020", "127.66.1.1:15021", "127.66.1.1:15090"}},
		{"status address apart", []string{"--bind", "127.66.1.1", "--status-address", "127.0.0.1:1"}, nil, nil,
			func(c *Config) any { return c.StatusAddress.String() }, "127.0.0.1:1"},
		{"proxyless gRPC", nil, []string{"ISTIO_META_GENERATOR=grpc", "PROXY_CONFIG=configPath: /proxy"}, nil,
			func(c *Config) any { return []any{c.NoEnvoy, c.GRPCBootstrap, c.CertificateDir} },
			[]any{true, "/proxy/grpc-bootstrap.json", "/proxy/certs"}},
		{"proxyless gRPC as Istio injects it", nil,
			[]string{"ISTIO_META_GENERATOR=grpc", "DISABLE_ENVOY=true", "OUTPUT_CERTS=/data", "GRPC_XDS_BOOTSTRAP=/boot.json"}, nil,
			func(c *Config) any { return []any{c.NoEnvoy, c.GRPCBootstrap, c.CertificateDir} }, []any{true, "/boot.json", "/data"}},
		{"proxyless gRPC beside an Envoy", []string{"--state-dir", "/proxy"}, []string{"GRPC_XDS_BOOTSTRAP=/boot.json"}, nil,
			func(c *Config) any { return []any{c.NoEnvoy, c.GRPCBootstrap, c.CertificateDir} }, []any{false, "/boot.json", "/proxy/certs"}},
		{"no proxyless gRPC", nil, nil, nil,
			func(c *Config) any { return []any{c.NoEnvoy, c.GRPCBootstrap, c.CertificateDir} }, []any{false, "", ""}},
		{"IPv6 instance", nil, []string{"INSTANCE_IP=fd00::7"}, nil,
			func(c *Config) any { return c.ReadyAddress.String() }, "[::]:15021"},
		{"own address", nil, []string{"INSTANCE_IP="}, nil,
			func(c *Config) any { return c.InstanceIPs }, []netip.Addr{netip.MustParseAddr("10.1.2.3")}},
		{"labels", nil, []string{`ISTIO_METAJSON_LABELS={"app":"web","version":"v1"}`},
			map[string]string{"etc/istio/pod/labels": "version=\"v2\"\n"},
			func(c *Config) any { return c.Labels }, map[string]string{"app": "web", "version": "v2"}},
		{"metadata", nil, []string{"ISTIO_META_CLUSTER_ID=c1", `ISTIO_METAJSON_PLATFORM={"rack":7}`, `ISTIO_METAJSON_PORTS=[1,2]`}, nil,
			func(c *Config) any { return c.Meta }, map[string]any{"CLUSTER_ID": "c1", "rack": 7.0, "PORTS": []any{1.0, 2.0}}},
		{"drain until idle has no deadline", nil, []string{"EXIT_ON_ZERO_ACTIVE_CONNECTIONS=true", "MINIMUM_DRAIN_DURATION=1s"}, nil,
			func(c *Config) any { return c.Drain }, Drain{Envoy: 45 * time.Second, Minimum: time.Second, ExitOnZero: true}},
		{"drain until idle or deadline", nil, []string{"EXIT_ON_ZERO_ACTIVE_CONNECTIONS=true", "TERMINATION_DRAIN_DURATION_SECONDS=30"}, nil,
			func(c *Config) any { return c.Drain.Termination }, 30 * time.Second},
		{"drain from ProxyConfig", nil, []string{"PROXY_CONFIG={terminationDrainDuration: 12s, drainDuration: 20s}"}, nil,
			func(c *Config) any { return []time.Duration{c.Drain.Termination, c.Drain.Envoy} }, []time.Duration{12 * time.Second, 20 * time.Second}},
		{"access log from ProxyConfig", nil, []string{"PROXY_CONFIG={fileFlushInterval: 0.25s, fileFlushMinSizeKb: 8}"}, nil,
			func(c *Config) any { return []any{c.EnvoyFileFlush, c.EnvoyFileFlushKB} }, []any{250 * time.Millisecond, uint32(8)}},
		{"access log from a flag", []string{"--proxy-file-flush-interval", "1m"}, []string{"PROXY_CONFIG={fileFlushInterval: 0.25s}"}, nil,
			func(c *Config) any { return []any{c.EnvoyFileFlush, c.EnvoyFileFlushKB} }, []any{time.Minute, uint32(0)}},
		{"Istio's spelling of flags", []string{"--proxyLogLevel=error", "--log_output_level=default:warn,ads:debug"}, nil, nil,
			func(c *Config) any { return []string{c.EnvoyLogLevel, c.LogLevel} }, []string{"error", "warn"}},
		{"on demand from ProxyConfig", nil, []string{"PROXY_CONFIG={onDemand: true, proxyMetadata: {A: b}}"}, nil,
			func(c *Config) any { return []any{*c.OnDemand, c.ProxyConfig.GetProxyMetadata(), c.Warnings} },
			[]any{true, map[string]string{"A": "b", "FAIRLEAD_ON_DEMAND": "true"}, []string(nil)}},
		{"on demand: annotation before PROXY_CONFIG", nil, []string{"PROXY_CONFIG={onDemand: true}"},
			map[string]string{"etc/istio/pod/annotations": `proxy.istio.io/config="onDemand: false\n"` + "\n"},
			func(c *Config) any { return *c.OnDemand }, false},
		{"on demand: environment before ProxyConfig", nil, []string{"PROXY_CONFIG={onDemand: true}", "FAIRLEAD_ON_DEMAND=false"}, nil,
			func(c *Config) any { return *c.OnDemand }, false},
		{"on demand as proxyMetadata", nil, []string{`PROXY_CONFIG={proxyMetadata: {FAIRLEAD_ON_DEMAND: "true"}}`}, nil,
			func(c *Config) any { return *c.OnDemand }, true},
		{"on demand is not said", nil, []string{"PROXY_CONFIG={onDemand: null}"}, nil,
			func(c *Config) any { return c.OnDemand == nil }, true},
		{"unknown field of ProxyConfig", nil, []string{"PROXY_CONFIG={concurrency: 3, fromTheFuture: 1}"}, nil,
			func(c *Config) any { return []any{c.Concurrency, strings.Contains(c.Warnings[0], "fromTheFuture")} }, []any{uint32(3), true}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := parse(t, flags(t, tc.args...), host(tc.files, slices.Concat(pod, tc.env)...))
			if d := cmp.Diff(tc.want, tc.get(c), cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); d != "" {
				t.Error(d)
			}
		})
	}
}

func TestErrorNamesTheSettingAndItsRemedy(t *testing.T) {
	for _, tc := range []struct {
		name  string
		role  string
		args  []string
		env   []string
		files map[string]string
		want  []string
	}{
		{"nothing set", "sidecar", nil, []string{"POD_NAME=", "POD_NAMESPACE="}, nil,
			[]string{"POD_NAME is not set", "POD_NAMESPACE is not set"}},
		{"gateway without Envoy", "router", nil, []string{"DISABLE_ENVOY=true"}, nil, []string{"DISABLE_ENVOY"}},
		{"role", "waypoint", nil, nil, nil, []string{`proxy role "waypoint"`}},
		{"several at once", "sidecar", nil, []string{"SECRET_TTL=long", "ISTIO_DELTA_XDS=perhaps", "ENVOY_STATUS_PORT=99999"}, nil,
			[]string{`SECRET_TTL="long": want a duration`, `ISTIO_DELTA_XDS="perhaps": want true or false`,
				`ENVOY_STATUS_PORT="99999": want a port`}},
		{"seconds", "sidecar", nil, []string{"TERMINATION_DRAIN_DURATION_SECONDS=5s"}, nil, []string{`="5s": want a whole number of seconds`}},
		{"address", "sidecar", []string{"--discovery-address", "istiod"}, nil, nil, []string{`discovery address "istiod": want host:port`}},
		{"bind", "sidecar", []string{"--bind", "localhost"}, nil, nil, []string{`--bind "localhost": want an IP address`}},
		{"same port twice", "sidecar", nil, []string{"ENVOY_STATUS_PORT=15090"}, nil, []string{"are both 0.0.0.0:15090"}},
		{"status port", "sidecar", nil, []string{"PROXY_CONFIG=statusPort: 99999"}, nil, []string{"ProxyConfig: statusPort 99999: want a port"}},
		{"ProxyConfig", "sidecar", nil, []string{"PROXY_CONFIG=concurrency: lots"}, nil, []string{"PROXY_CONFIG is not a ProxyConfig"}},
		{"on demand", "sidecar", nil, []string{"PROXY_CONFIG=onDemand: sometimes"}, nil,
			[]string{`PROXY_CONFIG: onDemand: "sometimes": want true or false`}},
		{"on demand as a variable", "sidecar", nil, []string{"FAIRLEAD_ON_DEMAND=on"}, nil,
			[]string{`FAIRLEAD_ON_DEMAND="on": want true or false`}},
		{"CPU limit", "sidecar", nil, []string{"ISTIO_CPU_LIMIT=2000m"}, nil, []string{`ISTIO_CPU_LIMIT="2000m": want a whole number of CPUs`}},
		{"threads", "sidecar", nil, []string{"PROXY_CONFIG=concurrency: 100000"}, nil, []string{"concurrency 100000", "want at most 1024"}},
		{"aliases", "sidecar", nil, []string{"PROXY_CONFIG=a: &a " + strings.Repeat("x", 5000) + "\nb: [" + strings.Repeat("*a,", 5000) + "]"},
			nil,
			[]string{"PROXY_CONFIG is not YAML that is read: with its aliases written out", "use fewer aliases"}},
		{"not YAML", "sidecar", nil, []string{"PROXY_CONFIG={"}, nil, []string{"PROXY_CONFIG is not YAML"}},
		{"metadata", "sidecar", nil, []string{"ISTIO_METAJSON_X={"}, nil, []string{`ISTIO_METAJSON_X="{": want JSON`}},
		{"trust domain", "sidecar", nil, []string{"TRUST_DOMAIN=Not A Domain"}, nil, []string{"TRUST_DOMAIN"}},
		{"labels file", "sidecar", nil, nil, map[string]string{"etc/istio/pod/labels": "app=web\n"}, []string{"etc/istio/pod/labels: line 1"}},
		{"id", "sidecar", []string{"--ca-id", "ca"}, nil, nil, []string{`--ca-id "ca"`}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := Parse(tc.role, flags(t, tc.args...), host(tc.files, slices.Concat(pod, tc.env)...))
			if err == nil {
				t.Fatal("accepted")
			}
			for _, w := range tc.want {
				if !strings.Contains(err.Error(), w) {
					t.Errorf("does not say %q: %v", w, err)
				}
			}
		})
	}
}

// The warning about an ignored field names a remedy.
func TestProxyConfigCannotSetProgramsAndFiles(t *testing.T) {
	inAnnotation := func(text string) map[string]string {
		return map[string]string{"etc/istio/pod/annotations": "proxy.istio.io/config=" + strconv.Quote(text) + "\n"}
	}
	for field, tc := range map[string]struct {
		text string
		// kept is whether PROXY_CONFIG may set it.
		kept   bool
		get    func(*Config) any
		with   any // the value in text
		remedy string
	}{
		"binaryPath": {"binaryPath: /tmp/evil", false, func(c *Config) any { return c.EnvoyBinary }, "/tmp/evil", "--envoy-binary"},
		"configPath": {"configPath: /tmp/evil", true, func(c *Config) any { return c.StateDir }, "/tmp/evil", "--state-dir"},
		"proxyMetadata.GRPC_XDS_BOOTSTRAP": {"proxyMetadata: {GRPC_XDS_BOOTSTRAP: /home/a/.profile}", false,
			func(c *Config) any { return c.GRPCBootstrap }, "/home/a/.profile", "environment of the agent"},
		"proxyMetadata.OUTPUT_CERTS": {"proxyMetadata: {OUTPUT_CERTS: /tmp/evil}", false, func(c *Config) any { return c.CertificateDir },
			"/tmp/evil", "environment of the agent"},
		"proxyMetadata.LD_PRELOAD": {"proxyMetadata: {LD_PRELOAD: /tmp/evil.so}", false,
			func(c *Config) any { return c.ProxyConfig.GetProxyMetadata()["LD_PRELOAD"] }, "/tmp/evil.so", "environment of the agent"},
	} {
		for source, c := range map[string]*Config{
			"annotation":   parse(t, flags(t), host(inAnnotation(tc.text), pod...)),
			"PROXY_CONFIG": parse(t, flags(t), host(nil, append(slices.Clone(pod), "PROXY_CONFIG="+tc.text)...)),
		} {
			kept := tc.kept && source == "PROXY_CONFIG"
			if got := tc.get(c); (got == tc.with) != kept {
				t.Errorf("%s in %s: %v", field, source, got)
			}
			if got := strings.Join(c.Warnings, "\n"); !kept && (!strings.Contains(got, source) || !strings.Contains(got, field) ||
				!strings.Contains(got, tc.remedy)) || kept && got != "" {
				t.Errorf("%s in %s: warnings %q", field, source, got)
			}
		}
	}
	if c := parse(t, flags(t, "--envoy-binary", "/own"),
		host(inAnnotation("binaryPath: /usr/local/bin/envoy"), pod...)); c.EnvoyBinary != "/own" || len(c.Warnings) > 0 {
		t.Errorf("%s, warnings %q", c.EnvoyBinary, c.Warnings)
	}
}

func TestDNSServerAtGateways(t *testing.T) {
	files := map[string]string{"/etc/resolv.conf": "nameserver 10.96.0.10\n"}
	for role, want := range map[string]bool{"router": true, "sidecar": false} {
		c, err := Parse(role, flags(t), host(files, append(slices.Clone(pod), "ISTIO_META_ENABLE_DNS_SERVER=true")...))
		if err != nil || (c.DNS != nil) != want {
			t.Errorf("%s: %v, DNS server %v", role, err, c.DNS != nil)
		}
	}
}

func TestEnvoySettings(t *testing.T) {
	for _, tc := range []struct {
		name  string
		args  []string
		env   []string
		files map[string]string
		get   func(*Config) any
		want  any
	}{
		{"log levels of components", []string{"--proxyLogLevel=info,misc:error,upstream:debug"}, nil, nil,
			func(c *Config) any { return c.EnvoyLogLevel + " " + c.EnvoyComponentLog }, "info misc:error,upstream:debug"},
		{"a level alone keeps those of components", []string{"--proxyLogLevel=info", "--proxyComponentLogLevel=misc:error"}, nil, nil,
			func(c *Config) any { return c.EnvoyLogLevel + " " + c.EnvoyComponentLog }, "info misc:error"},
		{"a level that there is not", []string{"--proxyLogLevel=chatty,misc:error,http:loud"}, nil, nil,
			func(c *Config) any {
				return c.EnvoyLogLevel + " " + c.EnvoyComponentLog + " " +
					fmt.Sprint(strings.Count(strings.Join(c.Warnings, ""), "no such level; use one of trace"))
			}, "warning misc:error 2"},
		{"limit of connections", nil, []string{`PROXY_CONFIG={"proxyMetadata":{"ISTIO_META_GLOBAL_DOWNSTREAM_MAX_CONNECTIONS":"77"}}`}, nil,
			func(c *Config) any { return c.MaxDownstreamConnections }, uint64(77)},
		{"limit of connections by the old name", nil,
			[]string{`PROXY_CONFIG={"runtimeValues":{"overload.global_downstream_max_connections":"78"}}`}, nil,
			func(c *Config) any { return c.MaxDownstreamConnections }, uint64(78)},
		{"metrics for this machine alone", nil, []string{`PROXY_CONFIG={"proxyMetadata":{"METRICS_LOCALHOST_ACCESS_ONLY":"true"}}`}, nil,
			func(c *Config) any { return c.StatsAddress.String() }, "127.0.0.1:15090"},
		{"override", nil, []string{"ISTIO_BOOTSTRAP_OVERRIDE=/o.json"}, map[string]string{"/o.json": "{}"},
			func(c *Config) any { return string(c.Envoy.BootstrapOverride) }, "{}"},
		{"template: environment before flag", []string{"--templateFile", "/f"}, []string{"ISTIO_BOOTSTRAP=/e"},
			map[string]string{"/e": "env", "/f": "flag"},
			func(c *Config) any { return string(c.Envoy.BootstrapTemplate) }, "env"},
		{"the Pod's author names no template", nil,
			[]string{
				`PROXY_CONFIG={"proxyBootstrapTemplatePath":"/etc/passwd","customConfigFile":"/etc/shadow","proxyMetadata":{"ISTIO_BOOTSTRAP":"/etc/passwd","ISTIO_BOOTSTRAP_OVERRIDE":"/etc/passwd"}}`},
			map[string]string{"/etc/passwd": "x", "/etc/shadow": "y"},
			func(c *Config) any {
				return []any{c.Envoy.BootstrapTemplate == nil, c.Envoy.BootstrapOverride == nil, len(c.Warnings)}
			}, []any{true, true, 4}},
		{"annotations for fields of ProxyConfig", nil, nil,
			map[string]string{"etc/istio/pod/annotations": "status.sidecar.istio.io/port=\"16020\"\nsidecar.istio.io/discoveryAddress=\"xds:9\"\n"},
			func(c *Config) any { return []any{c.StatusAddress.Port(), c.DiscoveryAddresses} }, []any{uint16(16020), []string{"xds:9"}}},
		{"mesh configuration below PROXY_CONFIG", nil, []string{"PROXY_CONFIG=concurrency: 3"},
			map[string]string{"./etc/istio/config/mesh": "defaultConfig: {concurrency: 2, statusPort: 17020}\ntrustDomain: x\n"},
			func(c *Config) any { return []any{c.Concurrency, c.StatusAddress.Port()} }, []any{uint32(3), uint16(17020)}},
		{"service cluster", []string{"--serviceCluster", "front"}, nil, nil,
			func(c *Config) any { return c.ProxyConfig.GetServiceCluster() }, "front"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := parse(t, flags(t, tc.args...), host(tc.files, slices.Concat(pod, tc.env)...))
			if d := cmp.Diff(tc.want, tc.get(c)); d != "" {
				t.Error(d)
			}
		})
	}
}

func TestEnvoySettingsThatAreWrong(t *testing.T) {
	for _, tc := range []struct {
		env, file string
		want      []string
	}{
		{"HOST_IP=here", "", []string{`HOST_IP="here"`, "IP address"}},
		{"ISTIO_BOOTSTRAP_OVERRIDE=/nowhere", "", []string{"ISTIO_BOOTSTRAP_OVERRIDE: "}},
		{"ISTIO_BOOTSTRAP=/nowhere", "", []string{"ISTIO_BOOTSTRAP, or --templateFile: "}},
		{"ISTIO_META_GLOBAL_DOWNSTREAM_MAX_CONNECTIONS=many", "", []string{"ISTIO_META_GLOBAL_DOWNSTREAM_MAX_CONNECTIONS", "a number above 0"}},
		{"ENVOY_SKIP_DEPRECATED_LOGS=perhaps", "", []string{"ENVOY_SKIP_DEPRECATED_LOGS", "true or false"}},
		{"A=b", "defaultConfig: [", []string{"--meshConfig", "./etc/istio/config/mesh is no MeshConfig in YAML"}},
		{"A=b", "defaultConfig: {concurrency: many}", []string{"--meshConfig is not a ProxyConfig"}},
	} {
		files := map[string]string{}
		if tc.file != "" {
			files["./etc/istio/config/mesh"] = tc.file
		}
		_, err := Parse("sidecar", flags(t), host(files, append(slices.Clone(pod), tc.env)...))
		for _, w := range tc.want {
			if err == nil || !strings.Contains(err.Error(), w) {
				t.Errorf("%s %s: %v, want %q", tc.env, tc.file, err, w)
			}
		}
	}
}

func TestConcurrencyIsTheLimitOfTheControlGroup(t *testing.T) {
	h := host(nil, pod...)
	h.CPULimit = 5
	if got := parse(t, flags(t), h).Concurrency; got != 5 {
		t.Errorf("%d threads, want 5", got)
	}
	h.Environ = append(h.Environ, "ISTIO_CPU_LIMIT=2")
	if got := parse(t, flags(t), h).Concurrency; got != 2 {
		t.Errorf("%d threads, want 2: injection knows the limit of the container", got)
	}
}

func FuzzPodInfo(f *testing.F) {
	f.Add("app=\"web\"\nversion=\"v1\"\n")
	f.Add("a=\"\\n\"")
	f.Fuzz(func(t *testing.T, data string) {
		m, err := parsePodInfo(data)
		if err == nil && strings.TrimSpace(data) != "" && len(m) == 0 {
			t.Errorf("%q has no entries and is no error", data)
		}
	})
}

func FuzzProxyConfig(f *testing.F) {
	f.Add("concurrency: 2\nproxyMetadata: {A: b}")
	f.Add(`{"discoveryAddress":"a:1","unknown":[1,{"x":null}]}`)
	f.Fuzz(func(t *testing.T, text string) {
		_, _ = Parse("sidecar", Flags{}, host(nil, append(slices.Clone(pod), "PROXY_CONFIG="+text)...))
	})
}

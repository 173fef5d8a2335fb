package config

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

func explain(t *testing.T, f Flags, h Host) (map[string]setting, string, error) {
	t.Helper()
	text, err := Explain("sidecar", f, h)
	var out map[string]setting
	if errYAML := yaml.Unmarshal(text, &out); errYAML != nil {
		t.Fatal(errYAML)
	}
	return out, string(text), err
}

func TestExplainSaysWhereAValueComesFrom(t *testing.T) {
	files := map[string]string{
		"etc/istio/pod/annotations": `proxy.istio.io/config="statusPort: 16020\ndrainDuration: 20s\n"` + "\n",
		"etc/istio/pod/labels":      "app=\"web\"\n",
		"./etc/istio/config/mesh":   "defaultConfig: {terminationDrainDuration: 9s, drainDuration: 60s, meshId: here}\n",
	}
	got, text, err := explain(t, flags(t, "--ca-address", "ca:1", "--proxy-log-level", "info"), host(files, append(slices.Clone(pod),
		"PROXY_CONFIG={concurrency: 2, discoveryAddress: 'xds:1', proxyMetadata: {SECRET_TTL: 2h, MY_TOKEN: hidden}, tracing: {lightstep: "+
			"{accessToken: hidden}}}",
		"ENVOY_STATUS_PORT=15022", "ISTIO_META_DB_PASSWORD=hidden")...))
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]setting{
		"caAddress":              {"ca:1", fromFlag},
		"envoyLogLevel":          {"info", fromFlag},
		"podName":                {"web-0", fromEnvironment},
		"readyAddress":           {"0.0.0.0:15022", fromEnvironment},
		"dnsDomain":              {"shop.svc.cluster.local", fromEnvironment},
		"statusAddress":          {"0.0.0.0:16020", fromAnnotation},
		"proxyConfig.statusPort": {16020.0, fromAnnotation},
		"drain.envoy":            {"20s", fromAnnotation},
		"secretTTL":              {"2h0m0s", fromMetadata},
		"concurrency":            {2.0, fromProxyConfig},
		"drain.termination":      {"9s", fromMesh},
		"proxyConfig.meshId":     {"here", fromMesh},
		"statsAddress":           {"0.0.0.0:15090", fromDefault},
		"deltaXDS":               {true, fromDefault},
		"trustDomain":            {"cluster.local", fromDefault},
	} {
		if got[name] != want {
			t.Errorf("%s: %+v, want %+v", name, got[name], want)
		}
	}
	if labels := got["labels"]; labels.From != fromLabel || labels.Value.(map[string]any)["app"] != "web" {
		t.Errorf("labels: %+v", labels)
	}
	if strings.Contains(text, "hidden") || strings.Count(text, redacted) < 3 {
		t.Errorf("a secret is printed:\n%s", text)
	}
}

func TestExplainSaysWhatComesFromAMachinesFile(t *testing.T) {
	got, text, err := explain(t, flags(t, "--env-file", envFile), machine(clusterEnv+"ISTIO_META_DB_PASSWORD=hidden\n", "SERVICE_ACCOUNT=vm2"))
	if err != nil || strings.Contains(text, "hidden") {
		t.Fatalf("%v\n%s", err, text)
	}
	for name, want := range map[string]setting{"namespace": {"shop", fromEnvFile}, "podName": {"db-1", fromEnvFile},
		"serviceAccount": {"vm2", fromEnvironment}} {
		if got[name] != want {
			t.Errorf("%s: %+v, want %+v", name, got[name], want)
		}
	}
}

func TestExplainOfAConfigurationThatIsRefused(t *testing.T) {
	got, _, err := explain(t, flags(t, "--concurrency", "5000"), host(nil))
	if err == nil || !strings.Contains(err.Error(), "POD_NAME is not set") || got["concurrency"] != (setting{5000.0, fromFlag}) {
		t.Errorf("%+v, %v", got["concurrency"], err)
	}
}

// FuzzExplain: whatever the environment, the annotation and the ProxyConfig say, the output is YAML, and no secret is
// in it.
func FuzzExplain(f *testing.F) {
	f.Add("concurrency: 2\nproxyMetadata: {A: b, C_TOKEN: s3cr3t-value}", `proxy.istio.io/config="statusPort: 1"`,
		"ISTIO_METAJSON_X={\"password\":[\"s3cr3t-value\"]}")
	const secret = "s3cr3t-of-the-environment"
	f.Fuzz(func(t *testing.T, proxyConfig, annotations, variable string) {
		h := host(map[string]string{"annotations": annotations},
			append(slices.Clone(pod), "PROXY_CONFIG="+proxyConfig, variable, "ISTIO_META_MY_TOKEN="+secret)...)
		text, _ := Explain("sidecar", Flags{}, h)
		if bytes.Contains(text, []byte(secret)) && !strings.Contains(proxyConfig+annotations+variable, secret) {
			t.Errorf("the secret is printed:\n%s", text)
		}
		var out map[string]setting
		if err := yaml.Unmarshal(text, &out); err != nil {
			t.Errorf("no YAML: %v\n%s", err, text)
		}
	})
}

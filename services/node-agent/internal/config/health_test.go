package config

import (
	"strings"
	"testing"
	"time"

	meshv1alpha1 "istio.io/api/mesh/v1alpha1"
)

// sidecar parses the configuration of a sidecar with these variables.
func sidecar(t *testing.T, env ...string) (*Config, error) {
	t.Helper()
	return Parse("sidecar", flags(t), host(nil, append(env, pod...)...))
}

// The environment of Istio's injection and a WorkloadGroup's probe are read, with Istio's defaults.
func TestHealthSettings(t *testing.T) {
	c, err := sidecar(t,
		`ISTIO_KUBE_APP_PROBERS={"/app-health/web/livez":{"httpGet":{"port":8080}}}`,
		`ISTIO_PROMETHEUS_ANNOTATIONS={"scrape":"true","port":"8080"}`,
		"REWRITE_PROBE_LEGACY_LOCALHOST_DESTINATION=true", "ENABLE_PROBE_KEEPALIVE_CONNECTIONS=true", "ISTIO_ENABLE_HTTP2_PROBING=false",
		"METRICS_LOCALHOST_ACCESS_ONLY=true", "PILOT_AGENT_MERGE_ENVOY_STATS=false",
		`PROXY_CONFIG={"readinessProbe":{"exec":{"command":["true"]},"initialDelaySeconds":3,"failureThreshold":5}}`)
	if err != nil {
		t.Fatal(err)
	}
	h := c.Health
	if len(h.AppProbes) != 1 || len(h.ScrapeTargets) != 1 || !h.ProbeLocalhost || !h.ProbeKeepAlive || !h.ProbeHTTP1 || !h.LocalMetrics ||
		h.MergeEnvoy {
		t.Errorf("%+v", h)
	}
	r := h.Readiness
	if r == nil || r.InitialDelay != 3*time.Second || r.Period != 10*time.Second || r.Timeout != time.Second || r.Success != 1 ||
		r.Failure != 5 || r.GetExec() == nil {
		t.Errorf("readiness probe %+v", r)
	}
	c, err = sidecar(t)
	if err != nil || c.Health.Readiness != nil || !c.Health.MergeEnvoy || !c.Health.VerifyRedirection {
		t.Errorf("defaults: %+v %v", c.Health, err)
	}
	for _, env := range []string{"ISTIO_META_INTERCEPTION_MODE=NONE", "FAIRLEAD_VERIFY_REDIRECTION=false", "DISABLE_ENVOY=true"} {
		if c, err = sidecar(t, env); err != nil || c.Health.VerifyRedirection {
			t.Errorf("%s: redirection is verified: %v", env, err)
		}
	}
}

// Every mistake is named with its variable or field.
func TestHealthSettingsThatAreRefused(t *testing.T) {
	for env, want := range map[string]string{
		`ISTIO_KUBE_APP_PROBERS={"/app-health/web/livez":{"grpc":{"port":15020}}}`: `port 15020 is that of the agent`,
		`ISTIO_KUBE_APP_PROBERS={"/x":{}}`:                                         `ISTIO_KUBE_APP_PROBERS: "/x"`,
		`ISTIO_PROMETHEUS_ANNOTATIONS={"port":"15090"}`:                            "port 15090 is that of Envoy's metrics",
		`PROXY_CONFIG={"readinessProbe":{}}`: "readinessProbe.httpGet, tcpSocket, grpc or exec is " +
			"missing",
		`PROXY_CONFIG={"readinessProbe":{"tcpSocket":{}}}`:                            "readinessProbe.tcpSocket.port 0",
		`PROXY_CONFIG={"readinessProbe":{"httpGet":{"port":1,"scheme":"ftp"}}}`:       `httpGet.scheme "ftp"`,
		`PROXY_CONFIG={"readinessProbe":{"grpc":{"port":1},"periodSeconds":-1}}`:      "periodSeconds -1",
		`PROXY_CONFIG={"readinessProbe":{"exec":{}}}`:                                 "exec.command is empty",
		`PROXY_CONFIG={"readinessProbe":{"grpc":{"port":1},"failureThreshold":1001}}`: "failureThreshold 1001",
	} {
		if _, err := sidecar(t, env); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", env, err, want)
		}
	}
}

// The author of a Pod's annotation cannot make the agent run a program.
func TestAnnotationsRunNothing(t *testing.T) {
	pc := &Config{ProxyConfig: &meshv1alpha1.ProxyConfig{}}
	if err := pc.merge("annotation "+proxyConfigAnnotation, `readinessProbe: {exec: {command: [reboot]}}`); err != nil {
		t.Fatal(err)
	}
	if pc.ProxyConfig.GetReadinessProbe() != nil || len(pc.Warnings) != 1 ||
		!strings.Contains(pc.Warnings[0], `readinessProbe.exec "reboot" is ignored`) {
		t.Errorf("%v %q", pc.ProxyConfig, pc.Warnings)
	}
}

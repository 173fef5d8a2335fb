package meshclient

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestThePortOfAnAgentIsThatOfItsPod(t *testing.T) {
	for name, c := range map[string]struct {
		annotation, config string
		port               uint16
		wrong              string
	}{
		"by default":                    {"", "", 15020, ""},
		"of a ProxyConfig without one":  {"", `{"concurrency":2}`, 15020, ""},
		"of the ProxyConfig":            {"", `{"statusPort":16020}`, 16020, ""},
		"the annotation goes before":    {"17020", `{"statusPort":16020}`, 17020, ""},
		"an annotation that is no port": {"x", "", 0, `"x" is no port`},
		"a ProxyConfig that is no port": {"", `{"statusPort":-1}`, 0, "PROXY_CONFIG"},
	} {
		t.Run(name, func(t *testing.T) {
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", Annotations: map[string]string{}}}
			pod.Spec.Containers = []corev1.Container{{Name: ProxyContainer, Env: []corev1.EnvVar{{Name: "PROXY_CONFIG", Value: c.config}}}}
			if c.annotation != "" {
				pod.Annotations["status.sidecar.istio.io/port"] = c.annotation
			}
			port, err := (&Pod{Pod: pod}).StatusPort()
			if port != c.port || (err == nil) != (c.wrong == "") || err != nil && !strings.Contains(err.Error(), c.wrong) {
				t.Errorf("%d, %v", port, err)
			}
		})
	}
}

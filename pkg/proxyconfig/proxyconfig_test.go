package proxyconfig_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/types/known/wrapperspb"
	networking "istio.io/api/networking/v1beta1"
	"istio.io/api/type/v1beta1"

	"fairlead.dev/pkg/proxyconfig"
)

const root = "istio-system"

// resource returns a ProxyConfig that sets the variable VAR to its name, and the concurrency if it is not negative.
func resource(namespace, name string, concurrency int32, labels map[string]string, age time.Duration) proxyconfig.Resource {
	r := proxyconfig.Resource{Namespace: namespace, Name: name, Created: time.Unix(1e9, 0).Add(-age), Spec: &networking.ProxyConfig{
		EnvironmentVariables: map[string]string{"VAR": name, "OF_" + name: "yes"},
	}}
	if labels != nil {
		r.Spec.Selector = &v1beta1.WorkloadSelector{MatchLabels: labels}
	}
	if concurrency >= 0 {
		r.Spec.Concurrency = wrapperspb.Int32(concurrency)
	}
	return r
}

func TestOf(t *testing.T) {
	web := map[string]string{"app": "web"}
	mesh, apps := resource(root, "mesh", 2, nil, 0), resource("apps", "apps", 3, nil, 0)
	selecting := resource("apps", "selecting", 5, web, 0)
	annotation := proxyconfig.Config{"concurrency": float64(4), "proxyMetadata": map[string]any{"VAR": "annotation"}}
	defaults := proxyconfig.Config{"concurrency": float64(1), "statusPort": float64(15020),
		"proxyMetadata": map[string]any{"VAR": "defaults", "KEPT": "yes"}}
	for name, tc := range map[string]struct {
		resources []proxyconfig.Resource
		own       proxyconfig.Config
		namespace string
		want      string // of VAR
		flags     []string
	}{
		"nothing but the defaults":             {nil, nil, "apps", "defaults", []string{"--concurrency", "1"}},
		"the root namespace over the defaults": {[]proxyconfig.Resource{mesh}, nil, "apps", "mesh", []string{"--concurrency", "2"}},
		"the namespace over the root namespace": {[]proxyconfig.Resource{apps, mesh}, nil, "apps", "apps",
			[]string{"--concurrency", "3"}},
		"another namespace is not reached": {[]proxyconfig.Resource{apps, selecting}, nil, "other", "defaults",
			[]string{"--concurrency", "1"}},
		"the annotation over the namespace": {[]proxyconfig.Resource{mesh, apps}, annotation, "apps", "annotation",
			[]string{"--concurrency", "4"}},
		"one that selects over the annotation": {[]proxyconfig.Resource{selecting, mesh, apps}, annotation, "apps", "selecting",
			[]string{"--concurrency", "5"}},
		"one that selects others": {[]proxyconfig.Resource{resource("apps", "x", 9, map[string]string{"app": "db"}, 0)},
			nil, "apps", "defaults", []string{"--concurrency", "1"}},
		"a selector reaches no other namespace": {[]proxyconfig.Resource{resource(root, "x", 9, web, 0)}, nil, "apps", "defaults",
			[]string{"--concurrency", "1"}},
		"a field that is not set is kept": {[]proxyconfig.Resource{mesh, resource("apps", "apps", -1, nil, 0)}, nil, "apps", "apps",
			[]string{"--concurrency", "2"}},
		"concurrency 0 means all threads": {[]proxyconfig.Resource{resource("apps", "apps", 0, nil, 0)}, nil, "apps", "apps",
			[]string{"--concurrency", "0"}},
		"the oldest of several": {[]proxyconfig.Resource{apps, resource("apps", "older", 7, nil, time.Hour)}, nil, "apps",
			"older", []string{"--concurrency", "7"}},
		"of the same age, the first by name": {[]proxyconfig.Resource{resource("apps", "b", 8, nil, 0),
			resource("apps", "a", 7, nil, 0)}, nil, "apps", "a", []string{"--concurrency", "7"}},
		"a workload of the root namespace":              {[]proxyconfig.Resource{mesh}, nil, root, "mesh", []string{"--concurrency", "2"}},
		"a concurrency that is no number makes no flag": {nil, proxyconfig.Config{"concurrency": "many"}, "apps", "defaults", nil},
	} {
		t.Run(name, func(t *testing.T) {
			got := proxyconfig.Of(defaults, tc.resources, root, proxyconfig.Workload{Namespace: tc.namespace, Labels: web, Own: tc.own})
			values := map[string]string{}
			for _, v := range got.Environment() {
				values[v.Name] = v.Value
			}
			if values["VAR"] != tc.want || values["KEPT"] != "yes" || got["statusPort"] != float64(15020) {
				t.Errorf("got %v, want VAR=%s", got, tc.want)
			}
			if diff := cmp.Diff(tc.flags, got.Flags()); diff != "" {
				t.Error(diff)
			}
		})
	}
	if defaults["concurrency"] != float64(1) || len(defaults["proxyMetadata"].(map[string]any)) != 2 {
		t.Errorf("the defaults were changed: %v", defaults)
	}
}

func TestOnDemandIsNotFixedAtTheStart(t *testing.T) {
	r := proxyconfig.Resource{Namespace: "apps",
		Spec: &networking.ProxyConfig{EnvironmentVariables: map[string]string{"FAIRLEAD_ON_DEMAND": "true"}}}
	got := proxyconfig.Of(nil, []proxyconfig.Resource{r}, root, proxyconfig.Workload{Namespace: "apps"})
	if len(got) != 0 || got.Environment() != nil {
		t.Errorf("got %v", got)
	}
}

func TestImageIsCarried(t *testing.T) {
	r := proxyconfig.Resource{Namespace: "apps", Spec: &networking.ProxyConfig{Image: &networking.ProxyImage{ImageType: "debug"}}}
	got := proxyconfig.Of(nil, []proxyconfig.Resource{r}, root, proxyconfig.Workload{Namespace: "apps"})
	if diff := cmp.Diff(proxyconfig.Config{"image": map[string]any{"imageType": "debug"}}, got); diff != "" {
		t.Error(diff)
	}
}

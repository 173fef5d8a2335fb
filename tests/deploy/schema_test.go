package deploy

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
)

func TestEveryObjectIsKnownToKubernetes(t *testing.T) {
	var kinds []string
	for _, o := range mesh(t) {
		accessor, err := meta.Accessor(o)
		if err != nil {
			t.Fatal(err)
		}
		kind := o.GetObjectKind().GroupVersionKind().Kind
		kinds = append(kinds, kind+"/"+accessor.GetName())
		clusterWide := kind == "Namespace" || strings.HasPrefix(kind, "ClusterRole")
		if clusterWide != (accessor.GetNamespace() == "") || (!clusterWide && accessor.GetNamespace() != namespace) {
			t.Errorf("%s %s is in namespace %q", kind, accessor.GetName(), accessor.GetNamespace())
		}
		if accessor.GetLabels()["app.kubernetes.io/part-of"] != "fairlead" {
			t.Errorf("%s %s does not say that it is part of fairlead", kind, accessor.GetName())
		}
	}
	slices.Sort(kinds)
	want := []string{
		"ClusterRole/fairlead-config-watcher", "ClusterRoleBinding/fairlead-config-watcher",
		"ConfigMap/fairlead", "ConfigMap/istio", "ConfigMap/istio-ca-root-cert",
		"Deployment/ca", "Deployment/config-watcher", "Deployment/xds-server",
		"Namespace/istio-system", "NetworkPolicy/ca", "NetworkPolicy/config-watcher", "NetworkPolicy/xds-server", "PersistentVolumeClaim/ca-root",
		"PodDisruptionBudget/ca", "PodDisruptionBudget/config-watcher", "PodDisruptionBudget/xds-server",
		"Service/ca", "Service/config-watcher", "Service/istiod", "Service/xds-server", "Service/xds-server-peers",
		"ServiceAccount/ca", "ServiceAccount/config-watcher", "ServiceAccount/fairlead-admin", "ServiceAccount/xds-server",
	}
	if !slices.Equal(kinds, want) {
		t.Errorf("rendered\n%s\nwant\n%s", strings.Join(kinds, "\n"), strings.Join(want, "\n"))
	}
}

// The check above is worth something only if it finds mistakes.
func TestMistakesAreFound(t *testing.T) {
	good, err := render(base)
	if err != nil {
		t.Fatal(err)
	}
	for name, edit := range map[string][2]string{
		"unknown field":  {"readOnlyRootFilesystem: true", "readOnlyRootFileSystem: true"},
		"wrong type":     {"replicas: 2", "replicas: two"},
		"unknown kind":   {"kind: Deployment", "kind: Deploymint"},
		"unknown group":  {"apiVersion: apps/v1", "apiVersion: apps/v9"},
		"repeated field": {"\n  replicas: 2", "\n  replicas: 2\n  replicas: 3"},
	} {
		t.Run(name, func(t *testing.T) {
			bad := strings.Replace(string(good), edit[0], edit[1], 1)
			if bad == string(good) {
				t.Fatalf("%q is not rendered, so the edit changes nothing", edit[0])
			}
			if _, err := decode([]byte(bad)); err == nil {
				t.Error("decoded")
			}
		})
	}
}

// provided are the ConfigMaps that the cluster's owner makes, as deploy/README.md says; true if Pods start without.
var provided = map[string]bool{"fairlead-jwks": false, "fairlead-config": true}

func TestReferencesLeadSomewhere(t *testing.T) {
	objects := mesh(t)
	for _, name := range services {
		d, c := service(t, objects, name)
		pod := d.Spec.Template.Spec
		if _, ok := named[*corev1.ServiceAccount](objects, pod.ServiceAccountName); !ok || pod.ServiceAccountName != name {
			t.Errorf("%s runs as service account %q", name, pod.ServiceAccountName)
		}
		for _, v := range pod.Volumes {
			checkVolume(t, objects, name, v)
			if !slices.ContainsFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool { return m.Name == v.Name }) {
				t.Errorf("%s: volume %s is not mounted", name, v.Name)
			}
		}
		for _, m := range c.VolumeMounts {
			if !slices.ContainsFunc(pod.Volumes, func(v corev1.Volume) bool { return v.Name == m.Name }) {
				t.Errorf("%s: mount %s has no volume", name, m.Name)
			}
		}
		for _, e := range c.Env {
			if e.ValueFrom == nil || e.ValueFrom.ConfigMapKeyRef == nil {
				continue
			}
			ref := e.ValueFrom.ConfigMapKeyRef
			if m, ok := named[*corev1.ConfigMap](objects, ref.Name); !ok || m.Data[ref.Key] == "" {
				t.Errorf("%s: variable %s is from ConfigMap %s, key %s, which is not there", name, e.Name, ref.Name, ref.Key)
			}
		}
	}
}

func checkVolume(t *testing.T, objects []runtime.Object, owner string, v corev1.Volume) {
	t.Helper()
	switch {
	case v.ConfigMap != nil:
		optional, isProvided := provided[v.ConfigMap.Name]
		_, isRendered := named[*corev1.ConfigMap](objects, v.ConfigMap.Name)
		if isRendered == isProvided {
			t.Errorf("%s: ConfigMap %s is rendered: %v, to be provided: %v", owner, v.ConfigMap.Name, isRendered, isProvided)
		}
		if got := v.ConfigMap.Optional != nil && *v.ConfigMap.Optional; got != optional {
			t.Errorf("%s: ConfigMap %s is optional: %v, want %v", owner, v.ConfigMap.Name, got, optional)
		}
	case v.PersistentVolumeClaim != nil:
		if _, ok := named[*corev1.PersistentVolumeClaim](objects, v.PersistentVolumeClaim.ClaimName); !ok {
			t.Errorf("%s: no claim %s", owner, v.PersistentVolumeClaim.ClaimName)
		}
	case v.Projected != nil:
		for _, source := range v.Projected.Sources {
			if source.ServiceAccountToken == nil || source.ServiceAccountToken.Audience != "istio-ca" {
				t.Errorf("%s: volume %s projects something else than a token for istio-ca", owner, v.Name)
			}
		}
	case v.EmptyDir != nil:
		if v.EmptyDir.Medium != corev1.StorageMediumMemory || v.EmptyDir.SizeLimit == nil {
			t.Errorf("%s: volume %s, which holds a key, is on the node's disk or without a limit", owner, v.Name)
		}
	default:
		t.Errorf("%s: volume %s is of a kind that nobody has thought about", owner, v.Name)
	}
}

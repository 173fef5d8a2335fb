package manifests_test

import (
	"path"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"fairlead.dev/services/installer/internal/install/profile"
)

// TestRootsOfKeyServers: Istio's value for the roots of servers of keys reaches config-watcher as a file.
func TestRootsOfKeyServers(t *testing.T) {
	pkg := open(t)
	const roots = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"
	value := "{jwksResolverExtraRootCA: \"" + strings.ReplaceAll(roots, "\n", `\n`) + "\"}"
	for name, tc := range map[string]struct{ profile, spec, configMap string }{
		"Istio's value":         {"minimal", "{values: {pilot: " + value + "}}", "fairlead-jwks-roots"},
		"of a revision":         {"minimal", "{revision: canary, values: {pilot: " + value + "}}", "fairlead-jwks-roots-canary"},
		"of config-watcher":     {"minimal", "{values: {configWatcher: " + value + "}}", "fairlead-jwks-roots"},
		"in one Pod":            {"compact", "{values: {pilot: " + value + "}}", "fairlead-jwks-roots"},
		"in one Pod, its value": {"compact", "{values: {compact: {configWatcher: " + value + "}}}", "fairlead-jwks-roots"},
		"none":                  {"minimal", "{}", ""},
	} {
		t.Run(name, func(t *testing.T) {
			objects := installed(t, pkg, tc.profile, tc.spec)
			configMap, key := keyRoots(objects)
			if configMap != tc.configMap {
				t.Fatalf("config-watcher reads the roots from ConfigMap %q, want %q", configMap, tc.configMap)
			}
			if configMap == "" {
				return
			}
			at := slices.IndexFunc(objects, func(o runtime.Object) bool {
				c, ok := o.(*corev1.ConfigMap)
				return ok && c.Name == configMap && c.Data[key] == roots
			})
			if at < 0 {
				t.Errorf("no ConfigMap %s has the roots in %s", configMap, key)
			}
		})
	}
}

// installed are the objects of an installation, which renders without warnings, without its CustomResourceDefinitions.
func installed(t *testing.T, pkg *profile.Package, name, spec string) []runtime.Object {
	t.Helper()
	result, err := try(pkg, name, "apiVersion: install.istio.io/v1alpha1\nkind: IstioOperator\nspec: "+spec+"\n")
	if err != nil {
		t.Fatal(err)
	}
	if len(result.Warnings) > 0 {
		t.Errorf("warnings %q", result.Warnings)
	}
	objects, err := decode(text(t, withoutCRDs(result.Objects)))
	if err != nil {
		t.Fatal(err)
	}
	return objects
}

// keyRoots is the ConfigMap and its key that config-watcher's --jwks-ca-file means; empty without the flag.
func keyRoots(objects []runtime.Object) (configMap, key string) {
	for _, o := range objects {
		d, ok := o.(*appsv1.Deployment)
		if !ok {
			continue
		}
		volumes := map[string]string{}
		for _, v := range d.Spec.Template.Spec.Volumes {
			if v.ConfigMap != nil {
				volumes[v.Name] = v.ConfigMap.Name
			}
		}
		for _, c := range d.Spec.Template.Spec.Containers {
			mounts := map[string]string{}
			for _, m := range c.VolumeMounts {
				mounts[m.MountPath] = volumes[m.Name]
			}
			for _, a := range c.Args {
				if file, ok := strings.CutPrefix(a, "--jwks-ca-file="); ok && c.Name == "config-watcher" {
					return mounts[path.Dir(file)], path.Base(file)
				}
			}
		}
	}
	return "", ""
}

package multicluster_test

import (
	"strings"
	"testing"

	"fairlead.dev/services/config-watcher/internal/manifest"
	"fairlead.dev/services/config-watcher/internal/validate"
)

// TestObjectsOfTheMultiClusterServicesAPI: both versions are read, with their status, strictly.
func TestObjectsOfTheMultiClusterServicesAPI(t *testing.T) {
	const (
		meta     = "metadata: {name: cart, namespace: shop}"
		export   = "apiVersion: multicluster.x-k8s.io/v1beta1\nkind: ServiceExport\n"
		imported = "apiVersion: multicluster.x-k8s.io/v1beta1\nkind: ServiceImport\n" + meta + "\nspec: "
	)
	for name, tc := range map[string]struct{ text, want string }{
		"an export":              {export + meta, ""},
		"of the first version":   {"apiVersion: multicluster.x-k8s.io/v1alpha1\nkind: ServiceExport\n" + meta, ""},
		"with labels and status": {export + meta + "\nspec: {exportedLabels: {a: b}}\nstatus: {conditions: []}", ""},
		"of no version":          {"apiVersion: multicluster.x-k8s.io/v1\nkind: ServiceExport\n" + meta, "version is not served"},
		"with an unknown field":  {export + meta + "\nspec: {labels: {a: b}}", "labels"},
		"of no Service's name":   {export + "metadata: {name: a.b, namespace: shop}", "metadata.name"},
		"an import": {strings.Replace(imported, "v1beta1", "v1alpha1", 1) +
			"{type: ClusterSetIP, ips: [192.0.2.1, '2001:db8::1'], ports: [{port: 80}]}", ""},
		"a headless one":          {imported + "{type: Headless, ports: []}", ""},
		"of an unknown type":      {imported + "{type: NodePort, ports: []}", "spec.type"},
		"with a name for address": {imported + "{type: ClusterSetIP, ips: [cart], ports: []}", "spec.ips[0]"},
		"with three addresses":    {imported + "{type: ClusterSetIP, ips: [192.0.2.1, 192.0.2.2, 192.0.2.3], ports: []}", "spec.ips"},
	} {
		t.Run(name, func(t *testing.T) {
			docs, problems := manifest.Parse("", []byte(tc.text+"\n"))
			if err := problems.Err(); err != nil {
				t.Fatal(err)
			}
			_, err := validate.Document(docs[0])
			if got := err == nil; got != (tc.want == "") || err != nil && !strings.Contains(err.Error(), tc.want) {
				t.Errorf("%v, want %q", err, tc.want)
			}
		})
	}
}

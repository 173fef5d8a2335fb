package install

import (
	"fmt"
	"strings"
	"testing"
)

// thingDefinition is the definition of the small package, with further metadata, versions and properties of spec.
func thingDefinition(metadata, versions string) string {
	return `apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: things.example.com` + metadata + `}
spec:
  group: example.com
  scope: Namespaced
  names: {kind: Thing, listKind: ThingList, plural: things, singular: thing}
  versions: [` + versions + `]
`
}

func thingVersion(name string, served, storage bool, properties string) string {
	return fmt.Sprintf("{name: %s, served: %v, storage: %v, schema: {openAPIV3Schema: {type: object, properties: {spec: {type: object, "+
		"properties: {%s}}}}}}", name, served, storage, properties)
}

// testDefinitionOfOthers holds what becomes of a definition that is there before: it is not written to if it has what
// the installation needs, whoever manages it and however, and an uninstall leaves it with the objects of users.
func testDefinitionOfOthers(t *testing.T, r *rig) {
	const size = "size: {type: integer, default: 1}, shape: {type: string}"
	helm := `, labels: {app.kubernetes.io/managed-by: Helm}, annotations: {meta.helm.sh/release-name: istio-base, meta.helm.sh/release-namespace: istio-system}`
	for name, tc := range map[string]struct {
		definition string
		// clientSide is set for `kubectl apply` without --server-side.
		clientSide     bool
		refused, noted string
	}{
		"the same, by Helm": {definition: thingDefinition(helm, thingVersion("v1", true, true, size))},
		"newer, by Helm": {definition: thingDefinition(helm,
			thingVersion("v1", true, true, size+", color: {type: string}")+","+thingVersion("v2", true, false, size))},
		"the same, by kubectl on the client's side": {definition: thingDefinition("", thingVersion("v1", true, true, size)), clientSide: true},
		"newer, by kubectl on the client's side": {definition: thingDefinition("",
			thingVersion("v1", true, true, size+", color: {type: string}")), clientSide: true},
		"open": {definition: strings.Replace(thingDefinition(helm, thingVersion("v1", true, true, "")),
			"properties: {}", "x-kubernetes-preserve-unknown-fields: true", 1)},
		"without a field": {
			definition: thingDefinition(helm, thingVersion("v1", true, true, "size: {type: integer}")),
			noted: "warning: 1 CustomResourceDefinitions that helm (release istio-base) manages stay as they are, and lack 1 fields of the " +
				"installation's, which objects cannot have until they are upgraded there, or taken over with --force: things.example.com; such as " +
				".spec.shape of things.example.com",
		},
		"without the version": {
			definition: thingDefinition(helm, thingVersion("v1", false, true, size)+","+thingVersion("v1beta1", true, false, size)),
			refused: "nothing was changed: CustomResourceDefinition things.example.com, which helm (release istio-base) manages, does not " +
				"serve v1: upgrade it there, or take it over with --force",
		},
	} {
		ok := t.Run(name, func(t *testing.T) {
			if tc.clientSide {
				r.kubectl(t, tc.definition, "apply") // on the client's side, with an annotation of what was applied
			} else {
				r.takeOver(t, "helm", tc.definition)
			}
			eventually(t, func() error { // the kind is served
				_, said, code := r.run(t, r.Kubeconfig, "diff", "-d", r.manifests)
				if code != 4 && !strings.Contains(said, "does not serve v1") {
					return fmt.Errorf("exit code %d: %s", code, said)
				}
				return nil
			})
			before := r.get(t, crds, "", "things.example.com").GetResourceVersion()
			if tc.refused != "" {
				all := r.snapshot(t)
				_, said := r.does(t, 1, r.installing()...)
				says(t, said, tc.refused)
				out, _, _ := r.run(t, r.Kubeconfig, "precheck", "-d", r.manifests)
				says(t, out, "Error [VersionMissing] (CustomResourceDefinition things.example.com) helm (release istio-base) manages it, and it does "+
					"not serve v1; upgrade it there")
				if diff := changed(all, r.snapshot(t)); len(diff) > 0 {
					t.Errorf("changed: %v", diff)
				}
				r.install(t, "--force")
				r.does(t, 0, r.installing()...) // it is the installation's now
				return
			}
			out, _, _ := r.run(t, r.Kubeconfig, "precheck", "-d", r.manifests, "--output-threshold", "info")
			if lacks := strings.Contains(out, "Info [FieldsMissing] (CustomResourceDefinition things.example.com)"); lacks != (tc.noted != "") ||
				strings.Contains(out, "VersionMissing") {
				t.Errorf("precheck says %q", out)
			}
			_, said := r.install(t)
			if !strings.Contains(said, tc.noted) || tc.noted == "" && strings.Contains(said, "warning") {
				t.Errorf("install says %q", said)
			}
			r.Apply(t, "{apiVersion: example.com/v1, kind: Thing, metadata: {name: mine, namespace: default}}")
			r.install(t)
			r.purge(t)
			after := r.get(t, crds, "", "things.example.com")
			if after.GetResourceVersion() != before || after.GetDeletionTimestamp() != nil {
				t.Error("the definition was written to")
			}
			r.get(t, things, "default", "mine")
		})
		r.purge(t)
		if err := r.dynamic.Resource(crds).Delete(t.Context(), "things.example.com", deleteNow); err != nil &&
			!strings.Contains(err.Error(), "not found") {
			t.Fatal(err)
		}
		eventually(t, func() error {
			if r.snapshot(t)["CustomResourceDefinition /things.example.com"] != nil {
				return fmt.Errorf("the definition is there")
			}
			return nil
		})
		if !ok {
			return
		}
	}

	// What the installation has made, and somebody changes later, is kept in the inventory.
	r.install(t)
	r.patch(t, crds, "", "things.example.com", "alice",
		`{"spec":{"versions":[{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object","properties":`+
			`{"spec":{"type":"object","properties":{"size":{"type":"integer"},"shape":{"type":"string"},"color":{"type":"string"}}}}}}}]}}`)
	out, _ := r.install(t)
	says(t, out, "10 unchanged")
}

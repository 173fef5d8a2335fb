// Package generate is the command that writes the schemas which package gatewayapi evaluates, and the definitions of
// the chart base, out of the CustomResourceDefinitions of the module sigs.k8s.io/gateway-api. They are of the
// experimental channel, which has every field. Both are without descriptions, which take nine tenths of them: Helm
// keeps a chart in a Secret, which may have 1 MiB. The schemas have no status, which no manifest sets. Of the kinds
// that are experimental as a whole there is XMesh, which config-watcher makes: its definition alone. hack/crds.sh gives
// the command the module's directory and version, and the directories to write to.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"

	"sigs.k8s.io/yaml"
)

func main() {
	if len(os.Args) != 5 {
		fmt.Fprintln(os.Stderr, "usage: generate MODULE VERSION SCHEMAS DEFINITIONS")
		os.Exit(2)
	}
	if err := run(os.Args[1], os.Args[2], os.Args[3], os.Args[4]); err != nil {
		fmt.Fprintln(os.Stderr, "generate:", err)
		os.Exit(1)
	}
}

const notice = `Schemas of the kinds of gateway.networking.k8s.io, out of sigs.k8s.io/gateway-api %s
(config/crd/experimental), Copyright The Kubernetes Authors. Descriptions and the status are left out. They are under the
Apache License, Version 2.0, as Fairlead itself is; its text is in LICENSE at the root of this repository.
`

// definition is the part of a CustomResourceDefinition that is read.
type definition struct {
	Kind string
	Spec struct {
		Group    string
		Names    struct{ Kind string }
		Versions []struct {
			Name   string
			Served bool
			Schema struct{ OpenAPIV3Schema map[string]any }
		}
	}
}

// schema is what versions of a kind have in common.
type schema struct {
	Versions []string       `json:"versions"`
	Schema   map[string]any `json:"schema"`
}

func run(module, version, schemas, definitions string) error {
	files, err := filepath.Glob(filepath.Join(module, "config/crd/experimental/gateway.networking.k8s.io_*.yaml"))
	if err != nil {
		return err
	}
	if len(files) == 0 {
		return fmt.Errorf("no definitions in %s", module)
	}
	for _, f := range files {
		if err := write(f, schemas, definitions); err != nil {
			return fmt.Errorf("%s: %w", f, err)
		}
	}
	mesh, err := os.ReadFile(filepath.Join(module, "config/crd/experimental/gateway.networking.x-k8s.io_xmeshes.yaml"))
	if err != nil {
		return err
	}
	if err := writeDefinition(string(mesh), definitions); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(schemas, "NOTICE"), fmt.Appendf(nil, notice, version), 0o644) //nolint:gosec // a file of the repository
}

func write(file, schemas, definitions string) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	for _, doc := range strings.Split(string(text), "\n---\n") {
		var d definition
		if err := yaml.Unmarshal([]byte(doc), &d); err != nil || d.Kind != "CustomResourceDefinition" {
			continue // policies that guard an upgrade
		}
		if err := writeDefinition(doc, definitions); err != nil {
			return err
		}
		var all []schema
		for _, v := range d.Spec.Versions {
			if !v.Served {
				continue
			}
			tree := v.Schema.OpenAPIV3Schema
			undescribed(tree)
			delete(tree["properties"].(map[string]any), "status")
			same := false
			for i := range all {
				if same = reflect.DeepEqual(all[i].Schema, tree); same {
					all[i].Versions = append(all[i].Versions, v.Name)
					break
				}
			}
			if !same {
				all = append(all, schema{[]string{v.Name}, tree})
			}
		}
		js, err := json.MarshalIndent(all, "", " ")
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(schemas, d.Spec.Names.Kind+".json"), append(js, '\n'), 0o644); err != nil { //nolint:gosec // as above
			return err
		}
	}
	return nil
}

// writeDefinition writes a definition without descriptions.
func writeDefinition(doc, to string) error {
	var tree map[string]any
	if err := yaml.Unmarshal([]byte(doc), &tree); err != nil {
		return err
	}
	for _, v := range tree["spec"].(map[string]any)["versions"].([]any) {
		undescribed(v.(map[string]any)["schema"].(map[string]any)["openAPIV3Schema"].(map[string]any))
	}
	text, err := yaml.Marshal(tree)
	if err != nil {
		return err
	}
	name := tree["metadata"].(map[string]any)["name"].(string)
	return os.WriteFile(filepath.Join(to, name+".yaml"), text, 0o644) //nolint:gosec // a file of the repository
}

// undescribed removes the descriptions of a schema and of those within it. A field may be called description too.
func undescribed(s map[string]any) {
	delete(s, "description")
	for _, in := range []string{"items", "additionalProperties"} {
		if inner, ok := s[in].(map[string]any); ok {
			undescribed(inner)
		}
	}
	if fields, ok := s["properties"].(map[string]any); ok {
		for _, f := range fields {
			undescribed(f.(map[string]any))
		}
	}
}

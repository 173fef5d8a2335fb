package gatewayapi

import (
	"context"
	"embed"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"sync"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/defaulting"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/listtype"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
)

//go:embed schemas/*.json
var files embed.FS

const directory = "schemas"

// rules are those of one schema. They may be used by several goroutines.
type rules struct {
	structural *schema.Structural
	schema     validation.SchemaValidator
	// expressions makes the CEL program of every rule at its first call, which takes a tenth of a second for an
	// HTTPRoute; only objects of files and of the store need it.
	expressions func() *cel.Validator
}

// compiled are the rules that have been needed, by kind, as a list of *versions. It never holds more than the kinds of
// this package.
var compiled sync.Map

// versions are the rules of the versions of a kind that have the same schema.
type versions struct {
	names []string
	rules *rules
}

// rulesOf returns the rules of a version of a kind; those of its first version if it does not have this one, which the
// caller has reported.
func rulesOf(kind, version string) (*rules, error) {
	all, err := schemasOf(kind)
	if err != nil {
		return nil, fmt.Errorf("schema of %s: %w", kind, err)
	}
	i := slices.IndexFunc(all, func(v versions) bool { return slices.Contains(v.names, version) })
	return all[max(i, 0)].rules, nil
}

// schemasOf returns the rules of a kind, which are made once.
func schemasOf(kind string) ([]versions, error) {
	load, _ := compiled.LoadOrStore(kind, sync.OnceValues(func() ([]versions, error) { return read(kind) }))
	return load.(func() ([]versions, error))()
}

// read makes the rules of a kind out of its file.
func read(kind string) ([]versions, error) {
	text, err := files.ReadFile(directory + "/" + kind + ".json")
	if err != nil {
		return nil, err
	}
	var stored []struct {
		Versions []string
		Schema   apiextensionsv1.JSONSchemaProps
	}
	if err := json.Unmarshal(text, &stored); err != nil {
		return nil, err
	}
	var out []versions
	for _, s := range stored {
		var props apiextensions.JSONSchemaProps
		if err := apiextensionsv1.Convert_v1_JSONSchemaProps_To_apiextensions_JSONSchemaProps(&s.Schema, &props, nil); err != nil {
			return nil, err
		}
		r := &rules{}
		if r.structural, err = schema.NewStructural(&props); err != nil {
			return nil, err
		}
		if r.schema, _, err = validation.NewSchemaValidator(&props); err != nil {
			return nil, err
		}
		r.expressions = sync.OnceValue(func() *cel.Validator { return cel.NewValidator(r.structural, true, celconfig.PerCallLimit) })
		out = append(out, versions{s.Versions, r})
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("no version")
	}
	return out, nil
}

// filled returns an object as an API server has it before it judges it: without the status, which nobody reads, with an
// empty value as a missing one, and with the defaults of what is missing.
func (r *rules) filled(object map[string]any) map[string]any {
	tree := maps.Clone(object)
	delete(tree, "status")
	tree = runtime.DeepCopyJSON(tree)
	defaulting.PruneNonNullableNullsWithoutDefaults(tree, r.structural)
	defaulting.Default(tree, r.structural)
	return tree
}

// check returns what is wrong with a filled object.
func (r *rules) check(tree map[string]any) field.ErrorList {
	sum, hashed := hash(tree)
	if hashed && passed.has(sum) {
		return nil
	}
	errs := r.evaluate(tree)
	if hashed && len(errs) == 0 {
		passed.put(sum)
	}
	return errs
}

// evaluate applies the rules in the order of an API server. CEL rules are evaluated if the object has the right shape,
// each and all of them with the API server's bound of their cost.
func (r *rules) evaluate(tree map[string]any) field.ErrorList {
	errs := validation.ValidateCustomResource(nil, tree, r.schema)
	errs = append(errs, listtype.ValidateListSetsAndMaps(nil, r.structural, tree)...)
	for _, e := range errs {
		switch e.Type {
		case field.ErrorTypeNotSupported, field.ErrorTypeRequired, field.ErrorTypeTooLong, field.ErrorTypeTooMany, field.ErrorTypeTypeInvalid:
			return errs
		}
	}
	broken, _ := r.expressions().Validate(context.Background(), nil, r.structural, tree, nil, celconfig.RuntimeCELCostBudget)
	return append(errs, broken...)
}

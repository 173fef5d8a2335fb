package catalog

import (
	"reflect"
	"testing"
)

// Each field decides about whether two instances are equal.
func TestEqualInstancesAreEqualInAllFields(t *testing.T) {
	all := Instance{Tags: []string{"a"}}
	if !all.Equal(&Instance{Tags: []string{"a"}}) {
		t.Error("equal instances differ")
	}
	for i := range reflect.TypeFor[Instance]().NumField() {
		var other Instance
		switch f := reflect.ValueOf(&other).Elem().Field(i); f.Interface().(type) {
		case string:
			f.SetString("x")
		case int:
			f.SetInt(1)
		case []string:
			f.Set(reflect.ValueOf([]string{"x"}))
		case map[string]string:
			f.Set(reflect.ValueOf(map[string]string{"x": "y"}))
		case map[string]int:
			f.Set(reflect.ValueOf(map[string]int{"x": 1}))
		case map[string]Address:
			f.Set(reflect.ValueOf(map[string]Address{"x": {}}))
		case Weights:
			f.Set(reflect.ValueOf(Weights{Passing: 1}))
		case Locality:
			f.Set(reflect.ValueOf(Locality{Region: "x"}))
		default:
			t.Fatalf("field %s has a type that the test does not know", reflect.TypeFor[Instance]().Field(i).Name)
		}
		if other.Equal(&Instance{}) {
			t.Errorf("field %s does not count", reflect.TypeFor[Instance]().Field(i).Name)
		}
	}
}

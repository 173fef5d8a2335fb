package validate

import (
	"reflect"
	"slices"
	"strings"
	"testing"
)

func TestDeprecatedValuesNameSettingsThatThereAre(t *testing.T) {
	var settings []string
	for _, f := range reflect.VisibleFields(reflect.TypeFor[KubernetesSettings]()) {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		settings = append(settings, name)
	}
	for value, name := range settingOf {
		if !slices.Contains(settings, name) {
			t.Errorf("%s became k8s.%s, which is no setting", value, name)
		}
	}
}

package migrate

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	"fairlead.dev/services/installer/internal/install/validate"
)

func TestValuesBecomeSettingsThatThereAre(t *testing.T) {
	var settings []string
	for _, f := range reflect.VisibleFields(reflect.TypeFor[validate.KubernetesSettings]()) {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		settings = append(settings, name)
	}
	for _, name := range straight {
		if !slices.Contains(settings, name) {
			t.Errorf("k8s.%s is no setting", name)
		}
	}
}

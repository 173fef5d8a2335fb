package meshdefaults_test

import (
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"fairlead.dev/pkg/meshdefaults"
)

func TestTheCallerOwnsTheDefaults(t *testing.T) {
	first := meshdefaults.MeshConfig()
	first.ConnectTimeout.Seconds, first.LocalityLbSetting.Enabled.Value, first.DefaultConfig.StatusPort = 1, false, 1
	if second := meshdefaults.MeshConfig(); second.ConnectTimeout.Seconds != 10 || !second.LocalityLbSetting.Enabled.Value ||
		!proto.Equal(second.DefaultConfig, meshdefaults.ProxyConfig()) {
		t.Errorf("what one caller changes reaches the next: %v", second)
	}
}

// A default that is the field's zero value and no message would be none: readers could not tell it from no default.
func TestEveryDefaultIsSet(t *testing.T) {
	for _, m := range []proto.Message{meshdefaults.MeshConfig(), meshdefaults.ProxyConfig()} {
		set := 0
		m.ProtoReflect().Range(func(protoreflect.FieldDescriptor, protoreflect.Value) bool { set++; return true })
		if want := map[protoreflect.Name]int{"MeshConfig": 21, "ProxyConfig": 10}[m.ProtoReflect().Descriptor().Name()]; set != want {
			t.Errorf("%s has %d defaults, want %d", m.ProtoReflect().Descriptor().Name(), set, want)
		}
	}
}

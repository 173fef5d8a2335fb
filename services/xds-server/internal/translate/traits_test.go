package translate_test

import (
	"testing"

	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"

	"fairlead.dev/services/xds-server/internal/plan"
	"fairlead.dev/services/xds-server/internal/translate"
	"fairlead.dev/services/xds-server/internal/translate/patch"
	"fairlead.dev/services/xds-server/internal/translate/proxyless"
)

// withTraits is a translator with traits that the one it embeds does not have.
type withTraits struct {
	plan.Translator
	traits plan.Traits
}

func (t withTraits) Traits() plan.Traits { return t.traits }

func TestAWrappedTranslatorKeepsItsTraits(t *testing.T) {
	for _, inner := range translate.All() {
		for _, want := range []plan.Traits{{}, {AlwaysListed: true}, {DropUnused: true}, {AlwaysListed: true, DropUnused: true}} {
			translator := withTraits{inner, want}
			for name, wrapped := range map[string]plan.Translator{
				"patch.WithEnvoyFilters": patch.WithEnvoyFilters(translator), "proxyless.WithGRPCClients": proxyless.WithGRPCClients(translator),
				"both": proxyless.WithGRPCClients(patch.WithEnvoyFilters(translator)),
			} {
				if got := wrapped.Traits(); got != want {
					t.Errorf("%s of %s: traits %+v, want %+v", name, inner.TypeURL(), got, want)
				}
			}
		}
	}
}

func TestTraitsOfServedTypes(t *testing.T) {
	want := map[string]plan.Traits{
		resource.EndpointType: {AlwaysListed: true},
		resource.SecretType:   {DropUnused: true},
	}
	for _, translator := range translate.All() {
		if got := translator.Traits(); got != want[translator.TypeURL()] {
			t.Errorf("%s: traits %+v, want %+v", translator.TypeURL(), got, want[translator.TypeURL()])
		}
	}
}

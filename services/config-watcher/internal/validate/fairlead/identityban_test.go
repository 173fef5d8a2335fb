package fairlead_test

import (
	"strings"
	"testing"
	"time"

	"fairlead.dev/services/config-watcher/internal/manifest"
	"fairlead.dev/services/config-watcher/internal/object"
	"fairlead.dev/services/config-watcher/internal/validate"
)

// TestIdentityBanObjects: an IdentityBan is decoded strictly, and bans only identities of workloads.
func TestIdentityBanObjects(t *testing.T) {
	for name, tc := range map[string]struct{ spec, want string }{
		"whole": {"identity: spiffe://cluster.local/ns/a/sa/b, reason: stolen, until: '2030-01-01T00:00:00Z'", ""},
		"with a status": {"identity: spiffe://cluster.local/ns/a/sa/b, reason: stolen, until: '2030-01-01T00:00:00Z'}\nstatus: " +
			"{observedGeneration: 1", ""},
		"no identity":    {"reason: stolen", "spec.identity"},
		"no workload":    {"identity: spiffe://cluster.local/a", "spec.identity"},
		"another form":   {"identity: 'SPIFFE://cluster.local/ns/a/sa/b'", "spec.identity"},
		"long reason":    {"identity: spiffe://cluster.local/ns/a/sa/b, reason: " + strings.Repeat("x", 501), "spec.reason"},
		"several lines":  {`identity: spiffe://cluster.local/ns/a/sa/b, reason: "a\nb"`, "spec.reason"},
		"no time":        {"identity: spiffe://cluster.local/ns/a/sa/b, until: tomorrow", "tomorrow"},
		"an unknown one": {"identity: spiffe://cluster.local/ns/a/sa/b, unless: x", "unless"},
	} {
		t.Run(name, func(t *testing.T) {
			docs, problems := manifest.Parse("",
				[]byte("apiVersion: fairlead.dev/v1\nkind: IdentityBan\nmetadata: {name: x}\nspec: {"+tc.spec+"}\n"))
			if err := problems.Err(); err != nil {
				t.Fatal(err)
			}
			o, err := validate.Document(docs[0])
			if tc.want != "" {
				if err == nil || !strings.Contains(err.Error(), tc.want) {
					t.Errorf("got %v, want %q", err, tc.want)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if b := o.Body.(*object.Ban); o.Key.Namespace != "" || b.Reason != "stolen" ||
				!b.Until.Equal(time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)) {
				t.Errorf("read as %v, %+v", o.Key, b)
			}
		})
	}
}

package mesh_test

import (
	"bytes"
	"context"
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"fairlead.dev/pkg/process"
	"fairlead.dev/pkg/testkit"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/installer/internal/cli"
	"fairlead.dev/services/installer/internal/cli/clitest"
	"fairlead.dev/services/installer/internal/cli/command"
)

// previewed is an answer with a service, and a conflict if that is asked for.
func previewed(conflict bool) *configv1.PreviewRegistryResponse {
	out := &configv1.PreviewRegistryResponse{
		Services: []*configv1.PreviewedService{
			{Name: "db", Namespace: "shop", Hosts: []string{"db.service.consul"}, Ports: []string{"80/TCP"}, Instances: 2},
			{Name: "web", Namespace: "shop", Hosts: []string{"web.service.consul", "web.virtual.consul"}, Ports: []string{"80/HTTP"},
				Account: "web", Instances: 3, Ready: 2, Joins: "web.shop.svc.cluster.local", Share: 10},
		},
		Unmatched: []string{"batch", "cron"},
		Problems:  []*configv1.PreviewProblem{{Field: `service "a_b"`, Reason: "is no label", Remedy: "rename it"}},
	}
	if conflict {
		out.Problems = append(out.Problems, &configv1.PreviewProblem{Object: "ServiceEntry shop/consul.east.web",
			Field:  "host web.service.consul",
			Reason: "ServiceEntry shop/web of source memory has this host", Remedy: "remove it there", Conflict: true})
	}
	return out
}

// TestARegistryIsPreviewed: files that the declaration names are sent with it, and a conflict is exit code 1.
func TestARegistryIsPreviewed(t *testing.T) {
	f, dir := clitest.New(t), t.TempDir()
	file := filepath.Join(dir, "consul-east.yaml")
	testkit.WriteFile(t, filepath.Join(dir, "token"), []byte("secret-token\n"))
	testkit.WriteFile(t, file, []byte("address: https://consul:8501\ntokenFile: token\nrules: []\n"))
	var got *configv1.PreviewRegistryRequest
	seen := func(_ context.Context, r *configv1.PreviewRegistryRequest) error {
		got = r
		return nil
	}
	f.SetPreview(previewed(false), seen)
	out, code, err := f.Run("", "sources", "preview", file)
	rows := lines(out)
	if err != nil || code != 0 || len(rows) < 8 || rows[0] != "SERVICE NAMESPACE HOST OTHER HOSTS PORTS IDENTITY READY JOINS" ||
		rows[1] != "db shop db.service.consul - 80/TCP none: plaintext 0/2 -" ||
		rows[2] != "web shop web.service.consul web.virtual.consul 80/HTTP shop/web 2/3 web.shop.svc.cluster.local: 10 %" ||
		!strings.Contains(out, "no rule matches: batch, cron\n") ||
		!strings.Contains(out, "problems:\n  service \"a_b\": is no label; rename it\n") ||
		strings.Contains(out, "conflicts:") {
		t.Errorf("%d %v\n%s", code, err, out)
	}
	if text := string(got.GetDeclaration()); got.GetName() != "consul-east" || !strings.Contains(text, "token: secret-token") ||
		strings.Contains(text, "tokenFile") {
		t.Errorf("sent %s: %s", got.GetName(), text)
	}
	f.SetPreview(previewed(true), seen)
	out, code, err = f.Run("", "sources", "preview", file, "--name", "other", "-o", "json")
	var doc struct{ Services, Problems []any }
	if json.Unmarshal([]byte(out), &doc) != nil || len(doc.Services) != 2 || len(doc.Problems) != 2 || got.GetName() != "other" {
		t.Errorf("%s", out)
	}
	if code != process.ExitFailure || err == nil || !strings.Contains(err.Error(), file+": the mesh has 1 of the hosts already") {
		t.Errorf("%d %v", code, err)
	}
	if out, _, _ = f.Run("", "sources", "preview", file); !strings.Contains(out, "conflicts:\n  ServiceEntry shop/consul.east.web: "+
		"host web.service.consul: ServiceEntry shop/web of source memory has this host; remove it there\n") {
		t.Errorf("%s", out)
	}
}

// TestWhatIsWrongWithAPreview names the file, the field and the remedy.
func TestWhatIsWrongWithAPreview(t *testing.T) {
	f, dir := clitest.New(t), t.TempDir()
	refuse := func(context.Context, *configv1.PreviewRegistryRequest) error {
		return status.Error(codes.InvalidArgument, "rules: is missing; write one")
	}
	f.SetPreview(nil, refuse)
	for text, want := range map[string]string{
		"address: x\n":            "rules: is missing; write one",
		"tokenFile: nowhere\n":    "tokenFile: ",
		"caFile: x\nca: y\n":      "caFile is given beside ca; give one of the two",
		"- no declaration\n- \t{": "rules: is missing",
	} {
		file := filepath.Join(dir, "consul-east.yaml")
		testkit.WriteFile(t, file, []byte(text))
		if _, code, err := f.Run("", "sources", "preview", file); code == 0 || err == nil || !strings.Contains(err.Error(), want) ||
			!strings.Contains(err.Error(), file) {
			t.Errorf("%q: %d %v, want %q", text, code, err, want)
		}
	}
	if _, code, err := f.Run("", "sources", "preview", filepath.Join(dir, "none.yaml")); code != process.ExitUsage || err == nil {
		t.Errorf("%d %v", code, err)
	}
}

// TestAPreviewIsInterrupted: the call ends with the command.
func TestAPreviewIsInterrupted(t *testing.T) {
	f := clitest.New(t)
	begun, ended := make(chan struct{}), make(chan struct{})
	f.SetPreview(nil, func(ctx context.Context, _ *configv1.PreviewRegistryRequest) error {
		close(begun)
		<-ctx.Done()
		close(ended)
		return ctx.Err()
	})
	ctx, interrupt := context.WithCancel(t.Context())
	done := make(chan error, 1)
	file := clitest.File(t, "address: https://consul:8501\n")
	go func() {
		var out bytes.Buffer
		done <- cli.Run(ctx, command.Env{In: strings.NewReader(""), Out: &out, Err: &out, Executable: "/nowhere/fairlead",
			Getenv: func(string) string { return "" }}, append([]string{"sources", "preview", file}, f.Flags...))
	}()
	<-begun
	interrupt()
	<-ended
	if err := <-done; err == nil {
		t.Error("no error")
	}
}

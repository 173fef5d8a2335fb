package service_test

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"fairlead.dev/pkg/process"
	"fairlead.dev/pkg/service"
	"fairlead.dev/pkg/service/servicetest"
	"fairlead.dev/pkg/testkit"
)

// execute runs the example's command with arguments and returns its output.
func execute(ctx context.Context, args ...string) (string, error) {
	cmd := service.Command(&cobra.Command{Use: "webhook"}, &webhookOptions{}, openWebhook)
	var out bytes.Buffer
	cmd.SetOut(&out)
	cmd.SetErr(&out)
	cmd.SetArgs(args)
	err := cmd.ExecuteContext(ctx)
	return out.String(), err
}

func TestCommandExitsWithTheCodeOfTheMistake(t *testing.T) {
	required := []string{"--ca-address=127.0.0.1:1", "--ca-token-file=t", "--root-cert-file=r", "--ops-address=127.0.0.1:0",
		"--webhook-address=127.0.0.1:0"}
	with := func(more ...string) []string { return append(append([]string{}, required...), more...) }
	for name, tc := range map[string]struct {
		args []string
		code int
		says []string
	}{
		"unknown flag": {[]string{"--no-such-flag"}, process.ExitUsage, []string{"no-such-flag"}},
		"argument":     {[]string{"now"}, process.ExitUsage, []string{"now"}},
		"all at once": {[]string{"--ops-address=", "--shutdown-grace=-1s", "--trust-domain=No Domain"}, process.ExitUsage,
			[]string{"--ops-address", "--shutdown-grace", "--trust-domain", "--ca-address"}},
		"keys alone":        {with("--admin-jwks-file=x"), process.ExitUsage, []string{"--admin-issuer: "}},
		"log level":         {with("--log-level=loud"), process.ExitUsage, []string{"--log-level: "}},
		"otlp":              {with("--otlp-endpoint=ftp://x"), process.ExitUsage, []string{"--otlp-endpoint: "}},
		"port that is none": {with("--webhook-address=127.0.0.1:99999999"), process.ExitFailure, []string{"--webhook-address: "}},
		"ops port":          {with("--ops-address=127.0.0.1:99999999"), process.ExitFailure, []string{"--ops-address: "}},
		"version":           {[]string{"--version"}, process.ExitOK, nil},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := execute(t.Context(), tc.args...)
			if got := process.ExitCode(err); got != tc.code {
				t.Errorf("exit code %d, want %d (%v)", got, tc.code, err)
			}
			for _, says := range tc.says {
				if err == nil || !strings.Contains(err.Error(), says) {
					t.Errorf("error %q does not say %q", err, says)
				}
			}
		})
	}
}

func TestHelpReplacesTextsAndAValueThatIsSetIsTheDefault(t *testing.T) {
	o := service.Options{ShutdownGrace: 3 * time.Second}
	flags := pflag.NewFlagSet("x", pflag.ContinueOnError)
	o.AddFlags(flags, service.Help{"trust-domain": "other words"})
	if got := flags.Lookup("trust-domain").Usage; got != "other words" {
		t.Errorf("text %q", got)
	}
	if o.ShutdownGrace != 3*time.Second || o.LogLevel != "info" {
		t.Errorf("got %+v", o)
	}
}

// loopback are options of the example's service on loopback, with keys for administrators' tokens.
func loopback(t *testing.T, issuer *testkit.Issuer) *webhookOptions {
	t.Helper()
	ca := testkit.PKI(t)
	return &webhookOptions{
		Options: service.Options{
			OpsAddress: "127.0.0.1:0", TrustDomain: testkit.TrustDomain, AdminJWKSFile: issuer.JWKSFile, AdminIssuer: issuer.Name,
		},
		Address: "127.0.0.1:0", CAAddress: "127.0.0.1:1", CATokenFile: filepath.Join(t.TempDir(), "token"),
		RootCertFile: ca.WriteRoot(t.TempDir()),
	}
}

// open opens the example's service.
func open(t *testing.T, issuer *testkit.Issuer) *service.Process {
	t.Helper()
	p, err := openWebhook(t.Context(), loopback(t, issuer), servicetest.Deps(t))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestRunServesUntilToldToStop(t *testing.T) {
	issuer := testkit.NewIssuer(t)
	_, running := servicetest.Start(t, openWebhook, loopback(t, issuer), servicetest.Deps(t))
	get := func(path, token string) (int, string) {
		code, body, err := running.Get(path, token)
		if err != nil {
			t.Fatal(err)
		}
		return code, body
	}
	if code, body := get("/readyz", ""); code != http.StatusServiceUnavailable || !strings.Contains(body, "identity") {
		t.Errorf("/readyz without a certificate: %d %s", code, body)
	}
	for name, tc := range map[string]struct {
		token string
		want  int
	}{
		"nobody":         {"", http.StatusUnauthorized},
		"administrator":  {issuer.Token("system", "admin", "admin"), http.StatusOK},
		"other audience": {issuer.Token("system", "admin", "other"), http.StatusUnauthorized},
		"other account":  {issuer.Token("system", "webhook", "admin"), http.StatusForbidden},
	} {
		if code, _ := get("/debug/version", tc.token); code != tc.want {
			t.Errorf("%s: %d, want %d", name, code, tc.want)
		}
	}
	running.Stop()
	if _, _, err := running.Get("/livez", ""); err == nil {
		t.Error("it answers after its end")
	}
}

func TestTheFirstTaskThatFailsEndsTheProcess(t *testing.T) {
	p := open(t, testkit.NewIssuer(t))
	boom := errors.New("boom")
	p.Task("broken", func(context.Context) error { return boom })
	if err := p.Run(t.Context()); !errors.Is(err, boom) || !strings.Contains(err.Error(), "broken: ") {
		t.Errorf("got %v", err)
	}
}

func TestCloseGivesPortsUp(t *testing.T) {
	p := open(t, testkit.NewIssuer(t))
	address := p.Addr("webhook-address").String()
	p.Close()
	again := service.New(service.Options{}, service.Deps{Log: testkit.Logger(t), Registry: prometheus.NewRegistry()})
	if _, err := again.Listen(t.Context(), "webhook-address", address); err != nil {
		t.Error(err)
	}
	again.Close()
}

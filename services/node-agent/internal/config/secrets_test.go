package config

import (
	"crypto/elliptic"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"fairlead.dev/pkg/svid"
	"fairlead.dev/pkg/testkit"
)

// at is a path below the working directory.
func at(t *testing.T, path ...string) string {
	t.Helper()
	cwd, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(append([]string{cwd}, path...)...)
}

func TestSourcesOfCertificatesAreIstios(t *testing.T) {
	s := parse(t, flags(t), host(nil, pod...)).Secrets
	if s.Socket != at(t, "var/run/secrets/workload-spiffe-uds/socket") || s.SocketRequired || s.FilesOnly {
		t.Errorf("socket %s, required %t, files only %t", s.Socket, s.SocketRequired, s.FilesOnly)
	}
	mounted := at(t, "var/run/secrets/workload-spiffe-credentials")
	certs := FileSet{at(t, "etc/certs/cert-chain.pem"), at(t, "etc/certs/key.pem"), at(t, "etc/certs/root-cert.pem")}
	want := []FileSet{
		{mounted + "/certificates.pem", mounted + "/private_key.pem", mounted + "/ca_certificates.pem"},
		{mounted + "/cert-chain.pem", mounted + "/key.pem", mounted + "/root-cert.pem"}, certs,
	}
	if !slices.Equal(s.Mounted, want) {
		t.Errorf("mounted files %v, want %v", s.Mounted, want)
	}
	if s.GraceRatio != 0.5 || *s.GraceJitter != svid.DefaultGraceJitter || s.Debounce != 100*time.Millisecond ||
		s.Key != (svid.KeyType{Curve: elliptic.P256()}) {
		t.Errorf("defaults %+v", s)
	}
	for name, env := range map[string]string{"written": "OUTPUT_CERTS=./etc/certs", "provisioned": "PROV_CERT=./etc/certs/"} {
		if s := parse(t, flags(t), host(nil, append(slices.Clone(pod), env)...)).Secrets; slices.Contains(s.Mounted, certs) {
			t.Errorf("%s files count as mounted", name)
		}
	}
	if s := parse(t, flags(t), host(nil, append(slices.Clone(pod), "FILE_MOUNTED_CERTS=true")...)).Secrets; !slices.Equal(s.Mounted,
		[]FileSet{certs}) || !s.FilesOnly {
		t.Errorf("FILE_MOUNTED_CERTS: %v", s.Mounted)
	}
	named := parse(t, flags(t), host(nil, append(slices.Clone(pod), "FILE_MOUNTED_CERTS=true", "ISTIO_META_TLS_CLIENT_KEY=/k",
		"ISTIO_META_TLS_CLIENT_ROOT_CERT=/r")...)).Secrets
	if !slices.Equal(named.Mounted, []FileSet{{certs.Chain, "/k", "/r"}}) {
		t.Errorf("named files: %v", named.Mounted)
	}
}

// The bundle is asked for unless the workload's owner says no, and kept where the key is, and on machines.
func TestTrustBundleIsKeptWhereTheKeyIs(t *testing.T) {
	for env, want := range map[string][2]bool{ // asked for, kept
		"":                            {true, false},
		"FAIRLEAD_TRUST_BY_XDS=false": {false, false},
		"OUTPUT_CERTS=/certs":         {true, true},
		"OUTPUT_CERTS=/c FAIRLEAD_TRUST_BY_XDS=no": {},
	} {
		f := flags(t)
		c, err := Parse("sidecar", f, host(nil, append(slices.Clone(pod), strings.Fields(env)...)...))
		if strings.HasSuffix(env, "=no") {
			if err == nil || !strings.Contains(err.Error(), "FAIRLEAD_TRUST_BY_XDS") {
				t.Errorf("%s: %v", env, err)
			}
			continue
		}
		testkit.NoError(t, err)
		if got := [2]bool{c.Secrets.TrustByXDS, c.Secrets.KeepBundle}; got != want {
			t.Errorf("%s: %v, want %v", env, got, want)
		}
	}
	f := flags(t)
	f.Cache = true
	if !parse(t, f, host(nil, pod...)).Secrets.KeepBundle {
		t.Error("not kept with --cache")
	}
	if !parse(t, flags(t, "--env-file", envFile), machine(clusterEnv)).Secrets.KeepBundle {
		t.Error("not kept on a machine")
	}
}

func TestKeyOptions(t *testing.T) {
	for env, want := range map[string]svid.KeyType{
		"":                              {Curve: elliptic.P256()},
		"WORKLOAD_RSA_KEY_SIZE=3072":    {RSABits: 3072},
		"ECC_SIGNATURE_ALGORITHM=ECDSA": {Curve: elliptic.P256()},
		"ECC_CURVE=P384":                {Curve: elliptic.P384()},
		"PKCS8_KEY=true":                {Curve: elliptic.P256()},
		"PKCS8_KEY=false":               {Curve: elliptic.P256(), Traditional: true},
		"WORKLOAD_RSA_KEY_SIZE=2048 ECC_SIGNATURE_ALGORITHM=ECDSA ECC_CURVE=P384": {Curve: elliptic.P384()},
	} {
		if got := parse(t, flags(t), host(nil, append(slices.Clone(pod), strings.Fields(env)...)...)).Secrets.Key; got != want {
			t.Errorf("%q: %+v, want %+v", env, got, want)
		}
	}
}

func TestSecretsThatCannotBeAreNamed(t *testing.T) {
	leaf, err := testkit.PKI(t).NewSVID("a", "b").Current()
	if err != nil {
		t.Fatal(err)
	}
	indented := strings.ReplaceAll(string(leaf.CertPEM), "\n", "\n    ")
	mesh := func(text string) map[string]string { return map[string]string{defaultMeshConfigFile: text} }
	for name, tc := range map[string]struct {
		env   string
		files map[string]string
		args  []string
		want  string
	}{
		"RSA size":  {env: "WORKLOAD_RSA_KEY_SIZE=1024", want: "WORKLOAD_RSA_KEY_SIZE=\"1024\": want a number of bits, 2048 to 4096"},
		"RSA text":  {env: "WORKLOAD_RSA_KEY_SIZE=big", want: "WORKLOAD_RSA_KEY_SIZE"},
		"algorithm": {env: "ECC_SIGNATURE_ALGORITHM=Ed25519", want: "ECC_SIGNATURE_ALGORITHM=\"Ed25519\": want ECDSA"},
		"curve":     {env: "ECC_CURVE=P521", want: "ECC_CURVE=\"P521\": want P256 or P384"},
		"PKCS8":     {env: "PKCS8_KEY=perhaps", want: "PKCS8_KEY"},
		"grace": {env: "SECRET_GRACE_PERIOD_RATIO=1",
			want: "SECRET_GRACE_PERIOD_RATIO=\"1\": want a number more than 0 and less than 1"},
		"no grace":        {env: "SECRET_GRACE_PERIOD_RATIO=0", want: "SECRET_GRACE_PERIOD_RATIO"},
		"grace NaN":       {env: "SECRET_GRACE_PERIOD_RATIO=NaN", want: "SECRET_GRACE_PERIOD_RATIO"},
		"jitter":          {env: "SECRET_GRACE_PERIOD_RATIO_JITTER=-0.1", want: "SECRET_GRACE_PERIOD_RATIO_JITTER"},
		"debounce":        {env: "FILE_DEBOUNCE_DURATION=1h", want: "FILE_DEBOUNCE_DURATION"},
		"socket":          {env: "WORKLOAD_IDENTITY_SOCKET_FILE=../x", want: "WORKLOAD_IDENTITY_SOCKET_FILE=\"../x\": want the name of a file"},
		"both":            {env: "FILE_MOUNTED_CERTS=true PROV_CERT=/p", want: "FILE_MOUNTED_CERTS=true and PROV_CERT exclude each other"},
		"files and cache": {env: "FILE_MOUNTED_CERTS=true", args: []string{"--cache"}, want: "FILE_MOUNTED_CERTS=true and --cache"},
		"roots":           {env: `PROXY_CONFIG={"caCertificatesPem":["x"]}`, want: "ProxyConfig caCertificatesPem[0]"},
		"no authority":    {files: mesh("caCertificates:\n- pem: |\n    " + indented), want: "caCertificates[0].pem: entry 1"},
		"plain URL": {files: mesh("caCertificates:\n- spiffeBundleUrl: http://bundle.example.com/"),
			want: "caCertificates[0].spiffeBundleUrl"},
		"URL with user": {files: mesh("caCertificates:\n- spiffeBundleUrl: https://a:hunter2@bundle.example.com/"),
			want: "caCertificates[0].spiffeBundleUrl"},
		"nothing": {files: mesh("caCertificates:\n- {}"), want: "caCertificates[0]: has neither pem nor spiffeBundleUrl"},
		"trust domain": {files: mesh("caCertificates:\n- {spiffeBundleUrl: 'https://x', trustDomains: [UPPER]}"),
			want: "caCertificates[0].trustDomains[0]"},
		"alias":    {files: mesh("trustDomainAliases: ['a/b']"), want: "trustDomainAliases[0]"},
		"no YAML":  {files: mesh("{"), want: "./etc/istio/config/mesh is no MeshConfig"},
		"fetcher":  {env: "CREDENTIAL_FETCHER_TYPE=Mock", want: "CREDENTIAL_FETCHER_TYPE=\"Mock\": want JWT or GoogleComputeEngine"},
		"STS port": {env: "STS_PORT=high", want: "STS_PORT"},
		"STS flag": {args: []string{"--stsPort", "70000"}, want: "--sts-port 70000"},
		"STS plugin": {env: "GCP_METADATA=p|12|c|l", args: []string{"--stsPort", "15463", "--tokenManagerPlugin", "Other"},
			want: "--token-manager-plugin \"Other\": want GoogleTokenExchange"},
		"STS without cloud": {env: "STS_PORT=15463", want: "GCP_METADATA"},
	} {
		t.Run(name, func(t *testing.T) {
			env := slices.Clone(pod)
			for e := range strings.FieldsSeq(tc.env) {
				env = append(env, e)
			}
			_, err := Parse("sidecar", flags(t, tc.args...), host(tc.files, env...))
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want %q", err, tc.want)
			}
			if err != nil && strings.Contains(err.Error(), "hunter2") {
				t.Errorf("the error has a password: %v", err)
			}
		})
	}
}

func TestAnchorsOfAMeshConfig(t *testing.T) {
	root := strings.ReplaceAll(string(testkit.PKI(t).RootPEM), "\n", "\n    ")
	s := parse(t, flags(t), host(map[string]string{
		defaultMeshConfigFile: "trustDomainAliases: [old.example]\ncaCertificates:\n- spiffeBundleUrl: https://bundle.example.com/\n  " +
			"trustDomains: [a.example]\n- pem: |\n    " + root}, pod...)).Secrets
	if !slices.Equal(s.TrustDomains, []string{"cluster.local", "old.example"}) || len(s.Anchors) != 2 ||
		s.Anchors[0].URL != "https://bundle.example.com/" || !slices.Equal(s.Anchors[0].TrustDomains, []string{"a.example"}) ||
		s.Anchors[1].PEM == "" {
		t.Errorf("got %v of %v", s.Anchors, s.TrustDomains)
	}
}

func TestTokenExchangeOfGoogle(t *testing.T) {
	c := parse(t, flags(t, "--stsPort=15463"), host(nil, append(slices.Clone(pod), "GCP_METADATA=proj|12|east|us-1")...))
	if c.STS != (STS{15463, "https://container.googleapis.com/v1/projects/proj/locations/us-1/clusters/east", "12"}) {
		t.Errorf("got %+v", c.STS)
	}
	if c := parse(t, flags(t), host(nil, append(slices.Clone(pod), "STS_PORT=0")...)); c.STS.Port != 0 {
		t.Errorf("port %d", c.STS.Port)
	}
}

// A Pod's annotation chooses no files of keys and of trust, and opens no port for tokens.
func TestAnnotationsChooseNoKeys(t *testing.T) {
	text := `proxy.istio.io/config="{\"proxyMetadata\": {\"PROV_CERT\": \"/x\", \"CA_ROOT_CA\": \"/x\", \"XDS_ROOT_CA\": \"/x\", \"STS_PORT\": \"1\", \"ISTIO_META_TLS_CLIENT_KEY\": \"/x\"}}"` + "\n"
	f := flags(t)
	c := parse(t, f, host(map[string]string{filepath.Join(f.PodInfoDir, "annotations"): text},
		append(slices.Clone(pod), "FILE_MOUNTED_CERTS=true")...))
	if s := c.Secrets; s.ProvisionedDir+s.CARootFile+s.DiscoveryRootFile != "" || s.Mounted[0].Key == "/x" || c.STS.Port != 0 {
		t.Errorf("got %+v, port %d", s, c.STS.Port)
	}
	if len(c.Warnings) < 5 {
		t.Errorf("warnings %q", c.Warnings)
	}
}

package config

import (
	"cmp"
	"crypto/elliptic"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"fairlead.dev/pkg/svid"
	"fairlead.dev/pkg/tlsconf"
)

// Files and sockets from which the workload's identity may come, those of Istio's agent, by the agent's working
// directory, which is / in a container.
const (
	externalSDSDir    = "./var/run/secrets/workload-spiffe-uds"
	defaultSDSSocket  = "socket"
	credentialsDir    = "./var/run/secrets/workload-spiffe-credentials"
	certsDir          = "./etc/certs"
	revocationsFile   = "./var/run/secrets/istio/crl/ca-crl.pem"
	maxSocketFilename = 64
)

// Node metadata that names the files of FILE_MOUNTED_CERTS; the control plane reads it, too.
const (
	metaClientChain = "TLS_CLIENT_CERT_CHAIN"
	metaClientKey   = "TLS_CLIENT_KEY"
	metaClientRoots = "TLS_CLIENT_ROOT_CERT"
)

// FileSet names the files of a certificate chain, its key and the roots that peers are verified with.
type FileSet struct{ Chain, Key, Roots string }

// Secrets says where the workload's key, certificate and roots come from. Package identity chooses the first source
// that is there: the socket, mounted files, the ca. All paths are absolute.
type Secrets struct {
	// Socket is the unix socket of another provider's SDS server. It is used if it is there, or in any case if
	// SocketRequired.
	Socket         string
	SocketRequired bool
	// Mounted are files that are used if all of a set are there. With FilesOnly, FILE_MOUNTED_CERTS, there is one set,
	// which is used in any case.
	Mounted   []FileSet
	FilesOnly bool
	// RevocationsFile is a list of revoked certificates of the mesh's roots; it need not exist.
	RevocationsFile string
	// ExtraRoots are ProxyConfig's caCertificatesPem, Anchors MeshConfig's caCertificates: roots that peers are
	// verified with besides.
	ExtraRoots []string
	Anchors    []Anchor
	// PushedRoots asks the control plane for roots besides (PROXY_CONFIG_XDS_AGENT).
	PushedRoots bool
	// TrustByXDS asks the control plane for the ca's signed trust bundle. KeepBundle keeps it in StateDir between runs.
	TrustByXDS, KeepBundle bool
	// TrustDomains are the own one and its aliases.
	TrustDomains []string

	// ProvisionedDir has a certificate that authenticates to the ca while the workload has none, see svid.Config; "" is
	// none.
	ProvisionedDir string
	// CARootFile and DiscoveryRootFile have the roots that the ca and the xds-servers are verified with; "" is
	// RootCertFile.
	CARootFile, DiscoveryRootFile string

	Key         svid.KeyType
	GraceRatio  float64
	GraceJitter *float64
	// Debounce is how long files must not have changed before they are read.
	Debounce time.Duration
}

// parseSecrets sets c.Secrets; mesh is a MeshConfig in JSON. It must follow parseProxyless, which sets CertificateDir,
// and c.CacheCertificate.
func (c *Config) parseSecrets(env *environment, mesh []byte) error {
	s := &c.Secrets
	anchors, aliases, trustErr := MeshAnchors(mesh)
	if trustErr != nil {
		trustErr = fmt.Errorf("%s: %w", meshConfigSource, trustErr)
	}
	s.Anchors, s.TrustDomains = anchors, append([]string{c.TrustDomain.Name()}, aliases...)
	s.FilesOnly = env.boolean("FILE_MOUNTED_CERTS", false)
	s.ProvisionedDir = env.own("PROV_CERT")
	s.CARootFile, s.DiscoveryRootFile = env.own("CA_ROOT_CA"), env.own("XDS_ROOT_CA")
	s.RevocationsFile = revocationsFile
	s.PushedRoots = env.boolean("PROXY_CONFIG_XDS_AGENT", false)
	s.TrustByXDS, s.KeepBundle = env.boolean("FAIRLEAD_TRUST_BY_XDS", true), c.KeySurvives() || env.machine
	s.ExtraRoots = c.ProxyConfig.GetCaCertificatesPem()
	s.Key = env.keyType()
	s.GraceRatio = env.share("SECRET_GRACE_PERIOD_RATIO", svid.DefaultGraceRatio, false)
	s.GraceJitter = new(env.share("SECRET_GRACE_PERIOD_RATIO_JITTER", svid.DefaultGraceJitter, true))
	s.Debounce = env.duration("FILE_DEBOUNCE_DURATION", 100*time.Millisecond)
	errs := []error{trustErr}
	if s.Debounce < 0 || s.Debounce > time.Minute {
		errs = append(errs, fmt.Errorf("FILE_DEBOUNCE_DURATION=%q: want 0s to 1m", s.Debounce))
	}
	socket := env.or("WORKLOAD_IDENTITY_SOCKET_FILE", defaultSDSSocket)
	s.Socket, s.SocketRequired = filepath.Join(externalSDSDir, socket), socket != defaultSDSSocket
	if socket != filepath.Base(socket) || socket == ".." || socket == "." || len(socket) > maxSocketFilename {
		errs = append(errs, fmt.Errorf("WORKLOAD_IDENTITY_SOCKET_FILE=%q: want the name of a file in %s, without a directory", socket,
			externalSDSDir))
	}
	if s.FilesOnly && s.ProvisionedDir != "" {
		errs = append(errs, errors.New(
			"FILE_MOUNTED_CERTS=true and PROV_CERT exclude each other: with mounted certificates no ca is asked, unset one of them"))
	}
	if s.FilesOnly && c.CacheCertificate {
		errs = append(errs, errors.New(
			"FILE_MOUNTED_CERTS=true and --cache exclude each other: mounted certificates are files already, unset one of them"))
	}
	certs := FileSet{filepath.Join(certsDir, svid.ChainFile), filepath.Join(certsDir, svid.KeyFile), filepath.Join(certsDir, svid.RootsFile)}
	if s.FilesOnly {
		named := func(key, def string) string { return cmp.Or(env.own(metaPrefix+key), def) }
		s.Mounted = []FileSet{{named(metaClientChain, certs.Chain), named(metaClientKey, certs.Key), named(metaClientRoots, certs.Roots)}}
	} else {
		s.Mounted = []FileSet{
			{filepath.Join(credentialsDir, "certificates.pem"), filepath.Join(credentialsDir, "private_key.pem"),
				filepath.Join(credentialsDir, "ca_certificates.pem")},
			{filepath.Join(credentialsDir, svid.ChainFile), filepath.Join(credentialsDir, svid.KeyFile),
				filepath.Join(credentialsDir, svid.RootsFile)},
		}
	}
	for i, text := range s.ExtraRoots {
		if _, err := tlsconf.ParseAuthorities([]byte(text)); err != nil {
			errs = append(errs, fmt.Errorf("ProxyConfig caCertificatesPem[%d]: %w", i, err))
		}
	}
	errs = append(errs, s.absolute())
	if !s.FilesOnly {
		// Files that this agent writes, or that only begin its life, are not mounted ones.
		dir, err := filepath.Abs(certsDir)
		errs = append(errs, err)
		if written := []string{filepath.Clean(c.CertificateDir), filepath.Clean(s.ProvisionedDir)}; !slices.Contains(written, dir) {
			s.Mounted = append(s.Mounted, FileSet{filepath.Join(dir, svid.ChainFile), filepath.Join(dir, svid.KeyFile),
				filepath.Join(dir, svid.RootsFile)})
		}
	}
	return errors.Join(errs...)
}

// absolute makes all paths absolute.
func (s *Secrets) absolute() error {
	paths := []*string{&s.Socket, &s.RevocationsFile, &s.ProvisionedDir, &s.CARootFile, &s.DiscoveryRootFile}
	for i := range s.Mounted {
		set := &s.Mounted[i]
		paths = append(paths, &set.Chain, &set.Key, &set.Roots)
	}
	for _, path := range paths {
		if *path == "" {
			continue
		}
		var err error
		if *path, err = filepath.Abs(*path); err != nil {
			return err
		}
	}
	return nil
}

// own looks a variable up in the process environment only, because ProxyConfig, which an annotation may set, must not
// choose files of keys and of trust. Names that proxyMetadata has besides are proxyconfig.Reserved.
func (e *environment) own(name string) string { return e.vars[name] }

// share reads a part of 1.
func (e *environment) share(name string, def float64, zero bool) float64 {
	want := "a number more than 0 and less than 1, such as 0.5"
	if zero {
		want = "a number from 0 and less than 1, such as 0.05"
	}
	return variable(e, name, def, want, func(v string) (float64, error) {
		n, err := strconv.ParseFloat(v, 64)
		if err == nil && !(n > 0 && n < 1 || zero && n == 0) {
			err = strconv.ErrRange
		}
		return n, err
	})
}

// keyType reads which keys to make: ECDSA if ECC_SIGNATURE_ALGORITHM says so, RSA if there is a size for it, else
// ECDSA.
func (e *environment) keyType() svid.KeyType {
	t := svid.KeyType{Traditional: !e.boolean("PKCS8_KEY", true)}
	ecdsa := variable(e, "ECC_SIGNATURE_ALGORITHM", false, "ECDSA", func(v string) (bool, error) {
		if !strings.EqualFold(v, "ECDSA") {
			return false, strconv.ErrSyntax
		}
		return true, nil
	})
	bits := variable(e, "WORKLOAD_RSA_KEY_SIZE", 0, fmt.Sprintf("a number of bits, %d to %d", svid.MinRSABits, svid.MaxRSABits),
		func(v string) (int, error) {
			n, err := strconv.Atoi(v)
			if err == nil && (n < svid.MinRSABits || n > svid.MaxRSABits) {
				err = strconv.ErrRange
			}
			return n, err
		})
	curve := variable(e, "ECC_CURVE", elliptic.P256(), "P256 or P384", func(v string) (elliptic.Curve, error) {
		switch strings.ToUpper(v) {
		case "P256":
			return elliptic.P256(), nil
		case "P384":
			return elliptic.P384(), nil
		default:
			return nil, strconv.ErrSyntax
		}
	})
	if bits > 0 && !ecdsa {
		t.RSABits = bits
	} else {
		t.Curve = curve
	}
	return t
}

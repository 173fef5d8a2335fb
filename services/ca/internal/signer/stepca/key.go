package stepca

import (
	"bytes"
	"crypto"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/go-jose/go-jose/v4"

	"fairlead.dev/pkg/fileio"
)

// maxKeyFile bounds a file in bytes.
const maxKeyFile = 64 << 10

// key is what signs the token of a request.
type key struct {
	jose.JSONWebKey
	// x5c is the certificate chain for the header of the same name; nil for a provisioner of type JWK.
	x5c []string
}

// keys reads the key at every use, and decodes it when a file has changed: to decrypt one takes a tenth of a second.
type keys struct {
	cfg  Config
	mu   sync.Mutex
	last key
	sum  [sha256.Size]byte
}

func (k *keys) current() (key, error) {
	files := []string{}
	if k.cfg.JWK != nil {
		files = append(files, k.cfg.JWK.KeyFile)
		if k.cfg.JWK.PasswordFile != "" {
			files = append(files, k.cfg.JWK.PasswordFile)
		}
	} else {
		files = append(files, k.cfg.X5C.CertFile, k.cfg.X5C.KeyFile)
	}
	var content [2][]byte
	hash := sha256.New()
	for i, file := range files {
		var err error
		if content[i], err = fileio.ReadRegular(file, maxKeyFile); err != nil {
			return key{}, err
		}
		fmt.Fprintf(hash, "%d,", len(content[i]))
		hash.Write(content[i])
	}
	sum := [sha256.Size]byte(hash.Sum(nil))
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.last.Key != nil && sum == k.sum {
		return k.last, nil
	}
	var next key
	var err error
	if k.cfg.JWK != nil {
		next.JSONWebKey, err = parseKey(content[0], bytes.TrimRight(content[1], "\r\n"))
	} else {
		next, err = parsePair(content[0], content[1])
	}
	if err != nil {
		return key{}, fmt.Errorf("%s: %w", files[0], err)
	}
	k.last, k.sum = next, sum
	return next, nil
}

// The algorithms of encrypted keys: those that step makes, and stronger ones.
var (
	keyAlgorithms     = []jose.KeyAlgorithm{jose.PBES2_HS256_A128KW, jose.PBES2_HS384_A192KW, jose.PBES2_HS512_A256KW}
	contentEncryption = []jose.ContentEncryption{jose.A128GCM, jose.A192GCM, jose.A256GCM, jose.A128CBC_HS256, jose.A256CBC_HS512}
)

// parseKey reads a private key. Errors say nothing about its content.
func parseKey(raw, password []byte) (jose.JSONWebKey, error) {
	text := strings.TrimSpace(string(raw))
	if strings.HasPrefix(text, "-----BEGIN") {
		return parsePEM([]byte(text))
	}
	if !strings.HasPrefix(text, "{") || strings.Contains(text, `"ciphertext"`) {
		encrypted, err := jose.ParseEncrypted(text, keyAlgorithms, contentEncryption)
		if err != nil {
			return jose.JSONWebKey{}, errors.New("is neither a JSON Web Key, encrypted or not, nor PEM; write the provisioner's private key")
		}
		if len(password) == 0 {
			return jose.JSONWebKey{}, errors.New("is encrypted; name the file with its password in jwk.passwordFile")
		}
		plain, err := encrypted.Decrypt(password)
		if err != nil {
			return jose.JSONWebKey{}, errors.New("cannot be decrypted with the password in jwk.passwordFile; correct one of them")
		}
		text = string(plain)
	}
	var k jose.JSONWebKey
	if err := k.UnmarshalJSON([]byte(text)); err != nil {
		return jose.JSONWebKey{}, errors.New("is no JSON Web Key; write the provisioner's private key")
	}
	return complete(k)
}

func parsePEM(text []byte) (jose.JSONWebKey, error) {
	block, _ := pem.Decode(text)
	if block == nil {
		return jose.JSONWebKey{}, errors.New("is no whole PEM; write the provisioner's private key")
	}
	var parsed any
	var err error
	switch block.Type {
	case "PRIVATE KEY":
		parsed, err = x509.ParsePKCS8PrivateKey(block.Bytes)
	case "EC PRIVATE KEY":
		parsed, err = x509.ParseECPrivateKey(block.Bytes)
	case "RSA PRIVATE KEY":
		parsed, err = x509.ParsePKCS1PrivateKey(block.Bytes)
	default:
		return jose.JSONWebKey{}, fmt.Errorf("is PEM of type %q; write a private key that is not encrypted, or an encrypted JSON Web Key",
			block.Type)
	}
	if err != nil {
		return jose.JSONWebKey{}, errors.New("has a private key that cannot be read")
	}
	return complete(jose.JSONWebKey{Key: parsed})
}

// complete checks that a key can sign, and gives it the ID that step-ca finds the provisioner by.
func complete(k jose.JSONWebKey) (jose.JSONWebKey, error) {
	if !k.Valid() || k.IsPublic() {
		return jose.JSONWebKey{}, errors.New("is no private key; write the provisioner's, not its public one")
	}
	var err error
	if k.Algorithm, err = algorithm(k.Key); err != nil {
		return jose.JSONWebKey{}, err
	}
	if k.KeyID == "" {
		sum, err := k.Thumbprint(crypto.SHA256)
		if err != nil {
			return jose.JSONWebKey{}, errors.New("is no key of a known kind")
		}
		k.KeyID = base64.RawURLEncoding.EncodeToString(sum)
	}
	return k, nil
}

// parsePair reads a certificate with its chain, and its key.
func parsePair(cert, private []byte) (key, error) {
	pair, err := tls.X509KeyPair(cert, private)
	if err != nil {
		return key{}, fmt.Errorf("certificate and key in x5c do not belong together: %w", err)
	}
	out := key{JSONWebKey: jose.JSONWebKey{Key: pair.PrivateKey}}
	if out.Algorithm, err = algorithm(pair.PrivateKey); err != nil {
		return key{}, err
	}
	for _, der := range pair.Certificate {
		out.x5c = append(out.x5c, base64.StdEncoding.EncodeToString(der))
	}
	return out, nil
}

package clusterkeys

import (
	"crypto"
	"crypto/rsa"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/go-jose/go-jose/v4"
)

// maxSet is how many keys a set may have.
const maxSet = 256

// Bounds of the RSA keys of further clusters: shorter ones can be factored, longer ones cost too much.
const (
	minRSABits = 2048
	maxRSABits = 8192
)

// ParseSet reads the public keys of a JSON Web Key Set (RFC 7517) that verify signatures. It refuses a set with a
// private or a symmetric key.
func ParseSet(raw []byte) ([]jose.JSONWebKey, error) {
	var set jose.JSONWebKeySet
	if err := json.Unmarshal(raw, &set); err != nil {
		return nil, errors.New("not a JSON Web Key Set")
	}
	if len(set.Keys) > maxSet {
		return nil, fmt.Errorf("more than %d keys", maxSet)
	}
	keys := make([]jose.JSONWebKey, 0, len(set.Keys))
	for i, k := range set.Keys {
		switch {
		case !k.IsPublic():
			return nil, fmt.Errorf("key %d (kid %q) is not a public key: remove private and symmetric keys from the file", i, k.KeyID)
		case !k.Valid():
			return nil, fmt.Errorf("key %d (kid %q) is not valid", i, k.KeyID)
		case k.Use != "" && k.Use != "sig":
			continue
		}
		keys = append(keys, k)
	}
	return keys, nil
}

// PublicKeys is ParseSet for a further cluster: each key has an id of its own, as those of Kubernetes have, so that
// verifying a token never tries more than one key of a cluster.
func PublicKeys(raw []byte) ([]jose.JSONWebKey, error) {
	if len(raw) == 0 {
		return nil, errors.New("is empty; it is what /openid/v1/jwks of the cluster's API server says")
	}
	keys, err := ParseSet(raw)
	switch {
	case err != nil:
		return nil, err
	case len(keys) == 0:
		return nil, errors.New("has no key; it is what /openid/v1/jwks of the cluster's API server says")
	case len(keys) > MaxKeys:
		return nil, fmt.Errorf("has more than %d keys; remove those that sign no tokens any more", MaxKeys)
	}
	ids := map[string]bool{}
	for _, k := range keys {
		switch {
		case k.KeyID == "":
			return nil, errors.New("a key has no kid; each key needs one")
		case ids[k.KeyID]:
			return nil, fmt.Errorf("two keys have the kid %.80q; each key needs one of its own", k.KeyID)
		}
		ids[k.KeyID] = true
		if key, ok := k.Key.(*rsa.PublicKey); ok && (key.N.BitLen() < minRSABits || key.N.BitLen() > maxRSABits) {
			return nil, fmt.Errorf("the RSA key %.80q has %d bits; keys of %d to %d are taken", k.KeyID, key.N.BitLen(), minRSABits, maxRSABits)
		}
	}
	return keys, nil
}

// Fingerprint is the SHA-256 thumbprint of a key (RFC 7638) in hexadecimal: equal for equal keys, whatever their ids.
func Fingerprint(k jose.JSONWebKey) (string, error) {
	sum, err := k.Thumbprint(crypto.SHA256)
	if err != nil {
		return "", fmt.Errorf("fingerprint of key %q: %w", k.KeyID, err)
	}
	return hex.EncodeToString(sum), nil
}

// OwnCluster stands for the own cluster in the lists of Shared. No cluster has that name.
const OwnCluster = "the own cluster"

// Shared returns the fingerprints of keys that several clusters have, the own one with its keys among them, each with
// the names of these clusters, the own one first. Nobody knows of which of two further clusters a token is that such a
// key signs. A key that the own cluster has is the own cluster's, whatever ConfigMaps say: else whoever may write one
// could take all tokens from it.
func Shared(own []jose.JSONWebKey, clusters []Cluster) (map[string][]string, error) {
	holders := map[string][]string{}
	add := func(name string, keys []jose.JSONWebKey) error {
		for _, k := range keys {
			sum, err := Fingerprint(k)
			if err != nil {
				return err
			}
			if !slices.Contains(holders[sum], name) {
				holders[sum] = append(holders[sum], name)
			}
		}
		return nil
	}
	if err := add(OwnCluster, own); err != nil {
		return nil, err
	}
	for i := range clusters {
		keys, err := PublicKeys(clusters[i].Keys)
		if err == nil {
			err = add(clusters[i].Name, keys)
		}
		if err != nil {
			return nil, fmt.Errorf("cluster %s: %w", clusters[i].Name, err)
		}
	}
	maps.DeleteFunc(holders, func(_ string, names []string) bool { return len(names) < 2 })
	return holders, nil
}

// SharedProblem says what follows from a key that several clusters have, an entry of what Shared returns.
func SharedProblem(sum string, names []string) string {
	if names[0] == OwnCluster {
		return fmt.Sprintf("%s have the same key (SHA-256 %.16s…): its tokens are the own cluster's, and nobody else's, so that whoever "+
			"else has it is any workload of the own cluster; give one of them a service account key of its own, or remove the entry",
			strings.Join(names, " and "), sum)
	}
	return fmt.Sprintf("%s have the same key (SHA-256 %.16s…), whose tokens are refused for all of them: nobody knows of which they are; "+
		"give one of them a service account key of its own, or remove its entry", strings.Join(names, " and "), sum)
}

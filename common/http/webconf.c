/* common/http/webconf.c - the web configuration file that Prometheus' exporters share. */
#include "common/http/webconf.h"

#include <string.h>

#include "common/conf/yaml.h"

#define FILE_BYTES_MAX (1u << 20)
#define USERS_MAX 1000u
#define NAME_BYTES_MAX 255u
#define HASH_LEN 60u /* $2y$10$ and 53 characters */
#define HASH_HEAD 7u

void
webconf_free(struct webconf *c)
{
	if (!c)
		return;
	mem_free(c->cert_file);
	mem_free(c->key_file);
	mem_free(c->client_ca_file);
	for (size_t i = 0; i < c->user_count; i++) {
		mem_free(c->users[i].name);
		mem_free(c->users[i].hash);
	}
	mem_free(c->users);
	mem_free(c);
}

struct httpd_tls_files
webconf_tls(const struct webconf *c)
{
	return (struct httpd_tls_files){.cert = c->cert_file,
	                                .key = c->key_file,
	                                .client_ca = c->client_ca_file,
	                                .client_required = c->client_required,
	                                .min_version = c->min_version,
	                                .max_version = c->max_version};
}

/* ---- what the format has and this server does not ---- */

struct refusal {
	const char *key, *why;
};

static const struct refusal refused_tls[] = {
	{"cert", "name a file with cert_file"},
	{"key", "name a file with key_file"},
	{"client_ca", "name a file with client_ca_file"},
	{"cipher_suites", "the server has its own choice"},
	{"prefer_server_cipher_suites", "the server's order always counts"},
	{"curve_preferences", "the server has its own choice"},
	{"client_allowed_sans", "every client that the CA vouches for is accepted"},
	{NULL, NULL},
};
static const struct refusal refused_http[] = {
	{"headers", "put a proxy in front that adds them"},
	{NULL, NULL},
};
static const struct refusal refused_top[] = {
	{"rate_limit", "requests have limits of their own"},
	{NULL, NULL},
};

static bool
check_keys(const struct yaml_doc *doc, const struct yaml_node *map, const char *const *allowed,
           const struct refusal *refused, struct err *err)
{
	for (const struct yaml_node *n = map->child; n; n = n->next)
		for (const struct refusal *r = refused; r->key; r++)
			if (strcmp(n->key, r->key) == 0)
				return yaml_err(doc, n, err, "'%s' is not supported here: %s", r->key, r->why);
	return yaml_only_keys(doc, map, allowed, err);
}

/* ---- TLS ---- */

static char *
beside(const char *conf_path, const char *path)
{
	const char *slash = strrchr(conf_path, '/');

	if (path[0] == '/' || !slash)
		return mem_strdup(path);
	return mem_printf("%.*s/%s", (int)(slash - conf_path), conf_path, path);
}

/* An empty text is none, as in the other exporters. */
static bool
read_path(const struct yaml_doc *doc, const struct yaml_node *map, const char *key, char **ret, struct err *err)
{
	const char *text = NULL;

	if (!yaml_get(map, key))
		return true;
	if (!yaml_str(doc, map, key, &text, err))
		return false;
	if (text[0])
		*ret = beside(yaml_name(doc), text);
	return true;
}

static bool
read_version(const struct yaml_doc *doc, const struct yaml_node *map, const char *key, int *ret, struct err *err)
{
	const struct yaml_node *n = yaml_get(map, key);
	const char *text = NULL;

	if (!n)
		return true;
	if (!yaml_str(doc, map, key, &text, err))
		return false;
	if (strcmp(text, "TLS12") == 0)
		*ret = 12;
	else if (strcmp(text, "TLS13") == 0)
		*ret = 13;
	else
		return yaml_err(doc, n, err, "%s: '%s' is neither TLS12 nor TLS13, and there are no others here", key,
		                text);
	return true;
}

static bool
read_client_auth(const struct yaml_doc *doc, const struct yaml_node *map, struct webconf *c, struct err *err)
{
	const char *text = "NoClientCert";
	bool asked;

	if (yaml_get(map, "client_auth_type") && !yaml_str(doc, map, "client_auth_type", &text, err))
		return false;
	c->client_required = strcmp(text, "RequireAndVerifyClientCert") == 0;
	asked = c->client_required || strcmp(text, "VerifyClientCertIfGiven") == 0;
	if (!asked && strcmp(text, "NoClientCert") != 0 && text[0])
		return yaml_err(doc, yaml_get(map, "client_auth_type"), err,
		                "client_auth_type: '%s' is none of NoClientCert, VerifyClientCertIfGiven and "
		                "RequireAndVerifyClientCert; a certificate that nobody verifies proves nothing",
		                text);
	if (asked && !c->client_ca_file)
		return yaml_err(doc, map, err, "client_auth_type: %s needs client_ca_file", text);
	if (!asked && c->client_ca_file)
		return yaml_err(doc, map, err,
		                "client_ca_file: only with client_auth_type VerifyClientCertIfGiven or "
		                "RequireAndVerifyClientCert");
	return true;
}

static bool
read_tls(const struct yaml_doc *doc, const struct yaml_node *map, struct webconf *c, struct err *err)
{
	static const char *const keys[] = {
		"cert_file", "key_file", "client_ca_file", "client_auth_type", "min_version", "max_version", NULL};

	if (!map || yaml_is_null(map))
		return true;
	if (!yaml_expect(doc, map, YAML_MAP, "tls_server_config", err) ||
	    !check_keys(doc, map, keys, refused_tls, err) || !read_path(doc, map, "cert_file", &c->cert_file, err) ||
	    !read_path(doc, map, "key_file", &c->key_file, err) ||
	    !read_path(doc, map, "client_ca_file", &c->client_ca_file, err) ||
	    !read_version(doc, map, "min_version", &c->min_version, err) ||
	    !read_version(doc, map, "max_version", &c->max_version, err))
		return false;
	if (c->min_version && c->max_version && c->min_version > c->max_version)
		return yaml_err(doc, map, err, "min_version is above max_version");
	if (!c->cert_file != !c->key_file)
		return yaml_err(doc, map, err, "cert_file and key_file are given together or not at all");
	if (!c->cert_file && map->count > 0)
		return yaml_err(doc, map, err, "tls_server_config has no cert_file and no key_file");
	return read_client_auth(doc, map, c, err);
}

/* ---- users ---- */

/* The cost, or 0 when this is no bcrypt hash. */
static int
hash_cost(const char *hash)
{
	static const char digits[] = "./ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";

	if (strlen(hash) != HASH_LEN || strncmp(hash, "$2", 2) != 0 || !strchr("aby", hash[2]) || hash[3] != '$' ||
	    hash[4] < '0' || hash[4] > '9' || hash[5] < '0' || hash[5] > '9' || hash[6] != '$' ||
	    strspn(hash + HASH_HEAD, digits) != HASH_LEN - HASH_HEAD)
		return 0;
	return (hash[4] - '0') * 10 + hash[5] - '0';
}

static bool
read_user(const struct yaml_doc *doc, const struct yaml_node *map, const struct yaml_node *n, struct webconf *c,
          struct err *err)
{
	const char *hash = NULL;
	int cost;

	if (!yaml_str(doc, map, n->key, &hash, err))
		return false;
	if (!n->key[0] || strchr(n->key, ':') || strlen(n->key) > NAME_BYTES_MAX)
		return yaml_err(doc, n, err, "a user's name is text of up to %u bytes without a colon", NAME_BYTES_MAX);
	cost = hash_cost(hash);
	if (cost == 0)
		return yaml_err(doc, n, err, "user '%s': this is no bcrypt hash, as `htpasswd -nBC 10 \"\"` makes one",
		                n->key);
	if (cost < WEBCONF_COST_MIN || cost > WEBCONF_COST_MAX)
		return yaml_err(doc, n, err, "user '%s': the hash has a cost of %d, the limits are %d and %d", n->key,
		                cost, WEBCONF_COST_MIN, WEBCONF_COST_MAX);
	c->users[c->user_count++] = (struct webconf_user){mem_strdup(n->key), mem_strdup(hash), cost};
	return true;
}

static bool
read_users(const struct yaml_doc *doc, const struct yaml_node *map, struct webconf *c, struct err *err)
{
	if (!map || yaml_is_null(map))
		return true;
	if (!yaml_expect(doc, map, YAML_MAP, "basic_auth_users", err))
		return false;
	if (map->count > USERS_MAX)
		return yaml_err(doc, map, err, "basic_auth_users: %zu users, at most %u are allowed", map->count,
		                USERS_MAX);
	c->users = mem_array(map->count + 1, sizeof(*c->users));
	for (const struct yaml_node *n = map->child; n; n = n->next)
		if (!read_user(doc, map, n, c, err))
			return false;
	return true;
}

/* ---- the file ---- */

static bool
read_http(const struct yaml_doc *doc, const struct yaml_node *map, struct err *err)
{
	static const char *const keys[] = {"http2", NULL};
	bool http2 = false;

	if (!map || yaml_is_null(map))
		return true;
	if (!yaml_expect(doc, map, YAML_MAP, "http_server_config", err) ||
	    !check_keys(doc, map, keys, refused_http, err))
		return false;
	if (yaml_get(map, "http2") && !yaml_bool(doc, map, "http2", &http2, err))
		return false;
	if (http2)
		return yaml_err(doc, map, err, "http2: this server speaks HTTP/1.1 only");
	return true;
}

bool
webconf_parse(const char *path, const char *text, size_t len, struct webconf **ret, struct err *err)
{
	static const char *const keys[] = {"tls_server_config", "http_server_config", "basic_auth_users", NULL};
	owned(webconf) struct webconf *c = mem_alloc(sizeof(*c));
	owned(yaml) struct yaml_doc *doc = NULL;
	const struct yaml_node *root;

	if (!yaml_parse(path, text, len, &doc, err))
		return false;
	root = yaml_root(doc);
	if (!yaml_expect(doc, root, YAML_MAP, "the file", err) || !check_keys(doc, root, keys, refused_top, err) ||
	    !read_tls(doc, yaml_get(root, "tls_server_config"), c, err) ||
	    !read_http(doc, yaml_get(root, "http_server_config"), err) ||
	    !read_users(doc, yaml_get(root, "basic_auth_users"), c, err))
		return false;
	*ret = take(c);
	return true;
}

bool
webconf_read(const char *path, struct webconf **ret, struct err *err)
{
	in_place(buf) struct buf text = {0};

	buf_init(&text, FILE_BYTES_MAX);
	return buf_read_file(&text, path, err) && webconf_parse(path, buf_text(&text), text.len, ret, err);
}

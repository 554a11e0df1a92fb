/* common/http/basic_auth.c - names and passwords of a web configuration, as a guard of the HTTP server. */
#include "common/http/basic_auth.h"

#include <crypt.h>
#include <pthread.h>
#include <string.h>
#include <strings.h>

#include "common/base/digest.h"
#include "common/base/time.h"

#define CREDENTIALS_MAX 1024u
#define SECRET_SIZE 32
#define TOKEN_NS (NS_PER_S / BASIC_AUTH_PER_SECOND)

struct basic_auth {
	uint8_t secret[SECRET_SIZE];
	pthread_mutex_t lock; /* of all that follows */
	struct webconf_user *users;
	size_t user_count;
	uint64_t generation; /* counts basic_auth_set */
	uint8_t known[BASIC_AUTH_KNOWN][SHA256_SIZE];
	size_t known_count, known_next;
	int64_t bucket_boot_ns; /* until when hashes are paid for, less the burst */
};

/* A name and a password from a header, and the memory they are in. */
struct credentials {
	char text[CREDENTIALS_MAX];
	const char *name, *password;
};

struct basic_auth *
basic_auth_new(void)
{
	struct basic_auth *a = mem_alloc(sizeof(*a));

	random_bytes(a->secret, sizeof(a->secret));
	pthread_mutex_init(&a->lock, NULL);
	return a;
}

static void
free_users(struct webconf_user *users, size_t count)
{
	for (size_t i = 0; i < count; i++) {
		mem_free(users[i].name);
		mem_free(users[i].hash);
	}
	mem_free(users);
}

void
basic_auth_free(struct basic_auth *a)
{
	if (!a)
		return;
	free_users(a->users, a->user_count);
	pthread_mutex_destroy(&a->lock);
	explicit_bzero(a, sizeof(*a));
	mem_free(a);
}

void
basic_auth_set(struct basic_auth *a, const struct webconf *c)
{
	struct webconf_user *users = mem_array(c->user_count + 1, sizeof(*users)), *old;
	size_t old_count;

	for (size_t i = 0; i < c->user_count; i++)
		users[i] = (struct webconf_user){mem_strdup(c->users[i].name), mem_strdup(c->users[i].hash),
		                                 c->users[i].cost};
	pthread_mutex_lock(&a->lock);
	old = a->users;
	old_count = a->user_count;
	a->users = users;
	a->user_count = c->user_count;
	a->generation++;
	a->known_count = a->known_next = 0;
	pthread_mutex_unlock(&a->lock);
	free_users(old, old_count);
}

/* ---- the header ---- */

static int
base64_value(char c)
{
	static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
	const char *at = c ? strchr(digits, c) : NULL;

	return at ? (int)(at - digits) : -1;
}

/* Decodes into out, which is as long as the text, and ends it; false when it is not base64 or has a NUL inside. */
static bool
base64_decode(const char *text, char *out)
{
	unsigned bits = 0, held = 0;
	size_t n = 0, digits = 0;

	for (; *text && *text != '='; text++, digits++) {
		int value = base64_value(*text);

		if (value < 0)
			return false;
		bits = (bits << 6 | (unsigned)value) & 0xffffu;
		held += 6;
		if (held < 8)
			continue;
		held -= 8;
		out[n] = (char)(bits >> held & 0xffu);
		if (!out[n++])
			return false;
	}
	out[n] = '\0';
	return digits % 4 != 1 && strspn(text, "=") == strlen(text) && strlen(text) <= 2;
}

static bool
parse(const char *authorization, struct credentials *ret)
{
	char *colon;

	if (!authorization || strncasecmp(authorization, "Basic ", 6) != 0)
		return false;
	authorization += 6;
	authorization += strspn(authorization, " ");
	if (strlen(authorization) >= sizeof(ret->text) || !base64_decode(authorization, ret->text))
		return false;
	colon = strchr(ret->text, ':');
	if (!colon)
		return false;
	*colon = '\0';
	ret->name = ret->text;
	ret->password = colon + 1;
	return true;
}

/* ---- judging ---- */

/* The user of that name; NULL: none. The lock is held. */
static const struct webconf_user *
find_user(const struct basic_auth *a, const char *name)
{
	for (size_t i = 0; i < a->user_count; i++)
		if (strcmp(a->users[i].name, name) == 0)
			return &a->users[i];
	return NULL;
}

/* The one whose hash takes longest, to hash with when there is nobody of that name. */
static const struct webconf_user *
slowest_user(const struct basic_auth *a)
{
	const struct webconf_user *slowest = &a->users[0];

	for (size_t i = 1; i < a->user_count; i++)
		if (a->users[i].cost > slowest->cost)
			slowest = &a->users[i];
	return slowest;
}

/* The hash is in it, so that another password for the same name is another pair. */
static void
digest_of(const struct basic_auth *a, const char *hash, const struct credentials *c, uint8_t out[SHA256_SIZE])
{
	char text[SECRET_SIZE + 128 + CREDENTIALS_MAX + 4];
	size_t n = 0;
	const char *const parts[] = {hash, c->name, c->password};

	memcpy(text, a->secret, SECRET_SIZE);
	n = SECRET_SIZE;
	for (size_t i = 0; i < ARRAY_LEN(parts); i++) {
		size_t len = strlen(parts[i]) + 1;

		ASSERT(n + len <= sizeof(text));
		memcpy(text + n, parts[i], len);
		n += len;
	}
	sha256(text, n, out);
	explicit_bzero(text, sizeof(text));
}

static bool
equal_in_constant_time(const void *a, const void *b, size_t n)
{
	const uint8_t *x = a, *y = b;
	unsigned differences = 0;

	for (size_t i = 0; i < n; i++)
		differences |= (unsigned)(x[i] ^ y[i]);
	return differences == 0;
}

bool
basic_auth_known(struct basic_auth *a, const char *authorization)
{
	const struct webconf_user *user;
	uint8_t digest[SHA256_SIZE];
	struct credentials c;
	bool known = false;

	if (!parse(authorization, &c))
		return false;
	pthread_mutex_lock(&a->lock);
	user = find_user(a, c.name);
	if (user) {
		digest_of(a, user->hash, &c, digest);
		for (size_t i = 0; i < a->known_count; i++)
			known |= equal_in_constant_time(a->known[i], digest, sizeof(digest));
	}
	pthread_mutex_unlock(&a->lock);
	explicit_bzero(&c, sizeof(c));
	return known;
}

static void
remember(struct basic_auth *a, const uint8_t digest[SHA256_SIZE], uint64_t generation)
{
	pthread_mutex_lock(&a->lock);
	if (a->generation == generation) {
		memcpy(a->known[a->known_next], digest, SHA256_SIZE);
		a->known_next = (a->known_next + 1) % BASIC_AUTH_KNOWN;
		if (a->known_count < BASIC_AUTH_KNOWN)
			a->known_count++;
	}
	pthread_mutex_unlock(&a->lock);
}

bool
basic_auth_check(struct basic_auth *a, void *worker, const char *authorization)
{
	const struct webconf_user *user;
	uint8_t digest[SHA256_SIZE];
	struct credentials c;
	uint64_t generation;
	char hash[128];
	const char *made;
	bool there, right;

	if (!parse(authorization, &c))
		return false;
	pthread_mutex_lock(&a->lock);
	generation = a->generation;
	user = find_user(a, c.name);
	there = user != NULL;
	if (!user && a->user_count > 0)
		user = slowest_user(a);
	if (user)
		memcpy(hash, user->hash, strlen(user->hash) + 1);
	pthread_mutex_unlock(&a->lock);
	if (!user)
		return false;
	/* not crypt_r: the sanitizers' runtimes have one of that name, for which the linker leaves the library out */
	made = crypt_rn(c.password, hash, worker, (int)sizeof(struct crypt_data));
	right = made && strlen(made) == strlen(hash) && equal_in_constant_time(made, hash, strlen(hash)) && there;
	if (right) {
		digest_of(a, hash, &c, digest);
		remember(a, digest, generation);
	}
	explicit_bzero(&c, sizeof(c));
	explicit_bzero(worker, sizeof(struct crypt_data));
	return right;
}

/* A bucket that fills with time: what was taken reaches into the future, but no further than the burst. */
bool
basic_auth_may_hash(struct basic_auth *a, int64_t boot_ns)
{
	bool may;

	pthread_mutex_lock(&a->lock);
	if (a->bucket_boot_ns < boot_ns)
		a->bucket_boot_ns = boot_ns;
	may = a->bucket_boot_ns + TOKEN_NS <= boot_ns + BASIC_AUTH_BURST * TOKEN_NS;
	if (may)
		a->bucket_boot_ns += TOKEN_NS;
	pthread_mutex_unlock(&a->lock);
	return may;
}

/* ---- the guard ---- */

static bool
has_users(struct basic_auth *a)
{
	bool has;

	pthread_mutex_lock(&a->lock);
	has = a->user_count > 0;
	pthread_mutex_unlock(&a->lock);
	return has;
}

static bool
refuse(const struct http_request *rq, struct http_reply *rp)
{
	http_problem(rp, rq, 401, NULL, "a name and its password are needed");
	rp->challenge = "Basic realm=\"tollgate\", charset=\"UTF-8\"";
	return false;
}

bool
basic_auth_guard(struct basic_auth *a, void *worker, const struct http_request *rq, struct http_reply *rp)
{
	const char *authorization = http_header(rq, "Authorization");
	struct credentials c;
	bool sound;

	if (!has_users(a) || basic_auth_known(a, authorization))
		return true;
	sound = parse(authorization, &c);
	explicit_bzero(&c, sizeof(c));
	if (!sound)
		return refuse(rq, rp);
	if (worker)
		return basic_auth_check(a, worker, authorization) || refuse(rq, rp);
	if (basic_auth_may_hash(a, time_boot_ns())) {
		http_defer(rp);
		return false;
	}
	http_problem(rp, rq, 429, NULL, "more passwords are tried than are checked, %d a second",
	             BASIC_AUTH_PER_SECOND);
	rp->retry_after_s = 1;
	return false;
}

void *
basic_auth_worker_new(void *app)
{
	(void)app;
	return mem_alloc(sizeof(struct crypt_data));
}

void
basic_auth_worker_free(void *worker)
{
	mem_free(worker);
}
